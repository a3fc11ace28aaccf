"""The operator's metrics, for Prometheus.

``families`` declares every metric. What is counted of a decision (``decisions``), what is shown of the jobs
(``jobs``) and how a request is named (``requests``) are pure functions. ``meter`` keeps what this process has
counted, and gives all of it as text. ``elasticjob_operator.scrape`` answers requests for it.
"""
