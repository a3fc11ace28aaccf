"""The operator of ElasticJob.

``observe`` has what it sees, ``plan`` what it decides (pure), ``act`` what it writes; ``controller`` says
when a job is looked at, ``leadership`` which of several operators acts. Open ``plan/planner.py`` first.
"""
