"""Turns "something about this job is new" into a pass over it: level-triggered, one pass at a time per job.

The parts and their names are those of controller-runtime:

* ``registry``: what is known of each job;
* ``job_source``: brings it, from the watch of jobs and from lists of them;
* ``queue``: which jobs need a pass, and when;
* ``reconciler``: one pass over one job: observe, plan, write, send Events;
* ``controller``: runs them, on the leading operator.
"""
