"""Rounds without an operator, the part that does I/O: requests, watches, probes and threads.
``elasticjob.peers`` decides."""
