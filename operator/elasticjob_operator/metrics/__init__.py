"""What the operator tells Prometheus.

``families`` declares every metric. What is counted of a decision (``decisions``), what is shown of the jobs
(``jobs``) and how a request is named (``requests``) are pure functions. ``meter`` keeps what this process has
counted, and gives all of it as text. Who asks, and what is looked at then: ``elasticjob_operator.scrape``.
"""
