"""What runs in an interpreter that is made beforehand: it imports torch, waits, and becomes the worker.

It is started with the worker's own command line, and stops where ``site`` imports ``sitecustomize``: before
Python itself sets up ``__main__`` and ``sys.path[0]`` and opens the script. So Python starts the script, as
in a cold start, and nothing of this package is below it on the stack.

It runs as part of the user's program. So it imports nothing else of ``elasticjob``, its own modules by
relative imports, and ``boot_site/sitecustomize.py`` takes them out of ``sys.modules`` before they run.

Any failure here, and any difference to a cold start, ends in ``exec`` of the same command in the same
process: a cold start that torch cannot tell from its own. If torchrun goes away while it waits, the exit code
is not 0, which would stand for a worker that has done its work.
"""
