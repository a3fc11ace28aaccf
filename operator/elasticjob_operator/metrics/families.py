"""Every metric that there is, in the order of docs/operate/metrics.md, whose table is made from this.

Names, units and types follow the conventions of Prometheus. A job's labels are ``job_namespace`` and
``job_name``: ``namespace`` and ``job`` are labels that Prometheus gives to what it scrapes. No label has a
value that users choose freely, apart from the names of jobs, namespaces and nodes.
"""

from __future__ import annotations

from typing import NamedTuple

from elasticjob.contract.str_enum import StrEnum


class Kind(StrEnum):
    """Types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A metric. A counter's name ends in ``_total``; ``buckets`` are a histogram's, in its unit."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Sample(NamedTuple):
    """The value of one series: what a counter is increased by, a histogram observes, or a gauge shows."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_MIDDLE = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LONG = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_JOB = ("job_namespace", "job_name")


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, text, labels)


def _histogram(name: str, buckets: tuple[float, ...], text: str, *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, labels, buckets)


JOBS = _gauge("elasticjob_jobs", "Jobs by state, which is the reason of the condition Training", "state")
UNREADABLE = _gauge("elasticjob_unreadable_jobs", "Jobs that the operator cannot read and leaves alone")
MEMBERS = _gauge("elasticjob_members", "Members of running rounds")
STANDBYS = _gauge("elasticjob_standbys", "Pods that stand by")
WANTED_PODS = _gauge("elasticjob_wanted_pods", "Pods that jobs ask for: replicas and spares")
NODE_FAILED_JOBS = _gauge(
    "elasticjob_node_failed_jobs",
    "Jobs whose last root failure was on this node, in the last 10 minutes; at most 20 nodes. The zone is "
    "empty where the node has none or cannot be read",
    *("node", "zone"),
)
WITHOUT_SERIES = _gauge(
    "elasticjob_jobs_without_series", "Jobs that have no series of their own, because there are too many"
)

FINISHED = _counter(
    "elasticjob_finished_jobs_total",
    "Jobs that have ended, by outcome and the reason of that condition",
    *("outcome", "reason"),
)
ROUNDS = _counter(
    "elasticjob_rounds_total", "Rounds published, by why they were formed", *("cause", "account")
)
CHARGES = _counter("elasticjob_charges_total", "Charges, by cause and account", *("cause", "account"))
DETECTION = _histogram(
    "elasticjob_detection_seconds",
    _LONG,
    "How long a loss went unnoticed, where that is known, by the account of the round's end",
    "account",
)
RENDEZVOUS = _histogram(
    "elasticjob_rendezvous_seconds",
    _LONG,
    "From the end of the round before until all members had met, by the account of that end",
    "account",
)
FIRST_STEP = _histogram(
    "elasticjob_first_step_seconds",
    _LONG,
    "From the end of the round before until the first step, by the account of that end",
    "account",
)
TRAINING = _counter("elasticjob_training_seconds_total", "Time in steps of jobs that report them")
REPEATED = _counter("elasticjob_repeated_seconds_total", "Part of the time in steps that had to be repeated")
RESUMES = _counter(
    "elasticjob_resumes_total",
    "Rounds by where their state came from: Memory, Peer (in part the memory of other pods), Storage, or "
    "Nothing, which is no checkpoint; of scripts that use elasticjob.checkpoint",
    "from",
)
REDONE = _counter(
    "elasticjob_redone_steps_total",
    "Steps that rounds have trained again, of scripts that report steps and use elasticjob.checkpoint",
)
LOST = _counter(
    "elasticjob_lost_seconds_total",
    "Time without progress, repeated steps included, by the cause of the round that followed",
    "cause",
)

PLAN = _histogram("elasticjob_plan_seconds", _SHORT, "Time of the planner, once or twice in each pass")
PASS = _histogram("elasticjob_pass_seconds", _MIDDLE, "Time of a pass: observe, plan, act")
FAILED_PASSES = _counter(
    "elasticjob_failed_passes_total", "Passes that failed and were tried again, by the kind of error", "error"
)
QUEUED = _gauge("elasticjob_queued_jobs", "Jobs that are due for a pass and wait for a turn")
UNDER_WAY = _gauge("elasticjob_passes_under_way", "Passes under way")
OLDEST = _gauge(
    "elasticjob_oldest_due_seconds",
    "For how long the job has been waiting that has waited longest for a pass to succeed",
)
FAILING_WRITES = _gauge("elasticjob_failing_writes", "Objects that cannot be written at present")
WATCH_AGE = _gauge(
    "elasticjob_watch_age_seconds",
    "Time since a watch has brought something; the API server sends a bookmark each minute",
    "kind",
)
WATCH_GAPS = _counter("elasticjob_watch_gaps_total", "How often a watch may have missed something", "kind")
REQUESTS = _counter(
    "elasticjob_api_requests_total",
    "Requests to the API server, each try of its own; code is none where there was no answer. Without those "
    "of kopf, which watches the jobs",
    *("verb", "resource", "code"),
)
REQUEST = _histogram(
    "elasticjob_api_request_seconds", _MIDDLE, "Time until the API server answers; without watches", "verb"
)
RETRIES = _counter(
    "elasticjob_api_retries_total",
    "Requests that went out once more: with fresh credentials after a 401, and writes whose connection was "
    "lost. Each is also a request",
    *("verb", "resource"),
)
THROTTLED_SECONDS = _counter(
    "elasticjob_throttled_seconds_total", "Time for which requests have waited for a turn in the operator"
)
THROTTLED = _gauge("elasticjob_throttled_requests", "Requests that wait for a turn in the operator")

LEADING = _gauge("elasticjob_leading", "1 if this process is the leading operator")
TAKEOVERS = _counter("elasticjob_takeovers_total", "How often this process has begun to lead")
LOOP_LAG = _histogram(
    "elasticjob_event_loop_lag_seconds", _SHORT, "By how much the event loop was late, once a second"
)
BUILD = _gauge("elasticjob_build_info", "1; the labels say what runs", *("version", "python"))

JOB_STATE = _gauge("elasticjob_job_state", "1 for the state in which the job is", *_JOB, "state")
JOB_WANTED = _gauge("elasticjob_job_wanted_pods", "Pods that the job asks for: replicas and spares", *_JOB)
JOB_LEAST = _gauge("elasticjob_job_min_replicas", "Members without which it does not train", *_JOB)
JOB_MEMBERS = _gauge("elasticjob_job_members", "Members of its running round, or 0", *_JOB)
JOB_STANDBYS = _gauge("elasticjob_job_standbys", "Pods that stand by", *_JOB)
JOB_ROUND = _gauge("elasticjob_job_round", "Number of its round", *_JOB)
JOB_RESTARTS = _counter("elasticjob_job_restarts_total", "Charges over its whole life", *_JOB)
JOB_CHARGES_LEFT = _gauge(
    "elasticjob_job_charges_left", "Charges left in an account that has a limit", *_JOB, "account"
)
JOB_STEP = _gauge("elasticjob_job_step", "Highest step that was reported", *_JOB)
JOB_STEP_TIME = _gauge(
    "elasticjob_job_last_step_timestamp_seconds",
    "When a new step was last reported, as the status has it: written once a minute",
    *_JOB,
)
JOB_GOODPUT = _gauge("elasticjob_job_goodput_ratio", "Goodput over its whole life, 0 to 1", *_JOB)
JOB_LOST = _gauge("elasticjob_job_lost_seconds", "Time without progress over its whole life", *_JOB)

OF_JOBS = (JOBS, UNREADABLE, MEMBERS, STANDBYS, WANTED_PODS, NODE_FAILED_JOBS, WITHOUT_SERIES)
"""Metrics of all jobs together; shown by the leading operator."""
OF_DECISIONS = (
    *(FINISHED, ROUNDS, CHARGES, DETECTION, RENDEZVOUS, FIRST_STEP),
    *(TRAINING, REPEATED, LOST, RESUMES, REDONE),
)
"""What this process has decided and written."""
OF_THE_PROCESS = (
    *(PLAN, PASS, FAILED_PASSES, QUEUED, UNDER_WAY, OLDEST, FAILING_WRITES, WATCH_AGE, WATCH_GAPS),
    *(REQUESTS, REQUEST, RETRIES, THROTTLED_SECONDS, THROTTLED, LEADING, TAKEOVERS, LOOP_LAG, BUILD),
)
OF_EACH_JOB = (
    *(JOB_STATE, JOB_WANTED, JOB_LEAST, JOB_MEMBERS, JOB_STANDBYS, JOB_ROUND, JOB_RESTARTS),
    *(JOB_CHARGES_LEFT, JOB_STEP, JOB_STEP_TIME, JOB_GOODPUT, JOB_LOST),
)
"""Shown by the leading operator, unless they are switched off."""
ALL = OF_JOBS + OF_DECISIONS + OF_THE_PROCESS + OF_EACH_JOB
