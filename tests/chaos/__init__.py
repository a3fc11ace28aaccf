"""A job under one fault after another: that it finishes, and that its training is that of an undisturbed run.

* ``faults``: failures that are done to the job, and the seeded plan of all
* ``planned``: planned changes; ``kinds``: the list of both
* ``watcher``: every version of the ElasticJob and of its round Lease, as the API server tells them
* ``checker``: the invariants (docs/internals/invariants.md) on each of them
* ``timeline``: which fault caused which rounds, as a table
* ``training``: the script that the pods run, the undisturbed run, and how both are compared
* ``leftovers``: what must not be there at the end
* ``run``: all of it, as ``python -m tests.chaos.run``
"""
