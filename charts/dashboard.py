"""What the Grafana dashboard shows; charts/generate.py writes it to `charts/elasticjob/files/dashboard.json`.

Its rows are read from top to bottom: whether all is well, what breaks training, how long that takes, one
job, and the operator itself. It selects the pods of one release as the alerts do.

Counters are increased over `$__rate_interval`, the time between two points and one scrape more, so that
nothing falls between two points. Shares and quantiles of what is rare are over the hour before each point.
"""

from __future__ import annotations

from typing import Any

from charts.grafana import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Panel,
    Query,
    Row,
    dashboard,
    labels,
    source,
    text,
    textbox,
)

RUNBOOKS_AT = "https://git.example/elasticjob/blob/main"
"""Where runbooks are, until somebody says it: the chart puts in `metrics.prometheusRule.runbookUrl`."""
PODS = 'namespace="$namespace", pod=~"$operator-[0-9a-z]+-[0-9a-z]+"'
"""The pods of one release, by the labels of the scrape."""
JOB = f'{PODS}, job_namespace="$job_namespace", job_name="$job_name"'
FIRING = 'ALERTS{alertname=~"ElasticJob.+", alertstate="firing"}'

_OPERATORS = f"elasticjob_leading{{{PODS.partition(', ')[0]}}}"
VARIABLES = (
    source(),
    labels("namespace", "Operator's namespace", "label_values(elasticjob_leading, namespace)"),
    labels("operator", "Operator", f"label_values({_OPERATORS}, pod)", "/^(.+)-[0-9a-z]+-[0-9a-z]+$/"),
    labels(
        "job_namespace", "Job's namespace", f"label_values(elasticjob_job_state{{{PODS}}}, job_namespace)"
    ),
    labels(
        "job_name",
        "Job",
        f'label_values(elasticjob_job_state{{{PODS}, job_namespace="$job_namespace"}}, job_name)',
    ),
    textbox("runbooks", "Runbooks at", RUNBOOKS_AT),
)

_PROBLEM = ((GREEN, None), (RED, 1.0))
_WARNING = ((GREEN, None), (ORANGE, 1.0))
_PLAIN = ((BLUE, None),)
_LEGEND_OF_ACCOUNTS = "{{account}}"


STATES = {
    "Training": GREEN,
    "Draining": "light-green",
    "Establishing": "light-blue",
    "FormingRound": YELLOW,
    "WaitingForPods": ORANGE,
    "WaitingForFencing": "purple",
    "New": "light-orange",
    "Suspended": "gray",
    "Complete": BLUE,
    "Failed": RED,
    "Other": "dark-red",
}
"""A colour for each state of a job."""
TRAINS = 'state="Training"'
SHOULD_TRAIN = 'state=~"New|WaitingForPods|FormingRound|WaitingForFencing|Establishing"'
WAITS_FOR_FENCING = 'state="WaitingForFencing"'
NO_SUCCESS = 'code!~"2.."'


def _of(metric: str, *matchers: str) -> str:
    """The series of this metric."""
    return f"{metric}{{{', '.join((PODS, *matchers))}}}"


def _sum(metric: str, *matchers: str) -> str:
    return f"sum({_of(metric, *matchers)})"


def _per_second(metric: str, by: str = "", *matchers: str) -> str:
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate({_of(metric, *matchers)}[$__rate_interval]))"


def _of_job(metric: str) -> str:
    return f"{metric}{{{JOB}}}"


def _count(metric: str, by: str, legend: str) -> Query:
    """How often something happened, as bars; what has not happened has none."""
    return Query(f"sum by ({by}) (increase({_of(metric)}[$__rate_interval])) > 0", legend)


def _hour(metric: str) -> str:
    return f"sum(increase({_of(metric)}[1h]))"


def _quantiles(metric: str) -> tuple[Query, ...]:
    """By account over the hour before: what half, and what nine of ten, stay below."""
    every = f"sum by (le, account) (increase({_of(f'{metric}_bucket')}[1h]))"
    return (
        Query(f"histogram_quantile(0.9, {every})", f"{_LEGEND_OF_ACCOUNTS}: 9 of 10"),
        Query(f"histogram_quantile(0.5, {every})", f"{_LEGEND_OF_ACCOUNTS}: half"),
    )


def _quantile(quantile: float, metric: str, by: str = "") -> str:
    """Of what happens all the time."""
    every = f"sum by (le{by}) (rate({_of(f'{metric}_bucket')}[$__rate_interval]))"
    return f"histogram_quantile({quantile}, {every})"


def _runbook(alert: str, page: str) -> tuple[str, str]:
    return f"Runbook of {alert}", f"${{runbooks}}/docs/operate/runbooks/{page}.md"


def _goodput(over: str) -> str:
    lost, training, repeated = (
        f"sum(increase({_of(f'elasticjob_{name}_seconds_total')}[{over}]))"
        for name in ("lost", "training", "repeated")
    )
    return f"1 - {lost} / ({training} - {repeated} + {lost})"


NO_LEADER = _runbook("ElasticJobNoLeader", "no-leader")
WATCH_BLIND = _runbook("ElasticJobWatchBlind", "watch-blind")
PASSES_LATE = _runbook("ElasticJobPassesLate", "passes-late")
WRITES_FAIL = _runbook("ElasticJobWritesFail", "writes-fail")
RESTARTS = _runbook("ElasticJobRestartsBurnBudget", "restarts-burn-budget")
NO_PROGRESS = _runbook("ElasticJobNoProgress", "no-progress")
NODE = _runbook("ElasticJobNodeBreaksJobs", "node-breaks-jobs")
ZONE = _runbook("ElasticJobZoneBreaksJobs", "zone-breaks-jobs")
GOODPUT = _runbook("ElasticJobGoodputLow", "goodput-low")
FENCING = _runbook("ElasticJobWaitingForFencing", "waiting-for-fencing")

ALL_IS_WELL = Row(
    "Is all well?",
    (
        (
            Panel(
                "stat",
                "Leading operators",
                "One leads. With none, training goes on, but no loss is noticed and no job starts.",
                (Query(f"sum({_of('elasticjob_leading')}) or vector(0)"),),
                width=4,
                height=4,
                steps=((RED, None), (GREEN, 1.0), (RED, 2.0)),
                runbooks=(NO_LEADER,),
            ),
            Panel(
                "stat",
                "Firing alerts",
                "Alerts of ElasticJob that fire now, of all releases. Which ones: see Alerts, below.",
                (Query(f"count({FIRING}) or vector(0)"),),
                width=4,
                height=4,
                steps=_PROBLEM,
            ),
            Panel(
                "stat",
                "Jobs that train",
                "Jobs in the state Training.",
                (Query(_sum("elasticjob_jobs", TRAINS)),),
                width=4,
                height=4,
            ),
            Panel(
                "stat",
                "Jobs that should train and do not",
                "New, WaitingForPods, FormingRound, WaitingForFencing or Establishing. Soon after a failure "
                "this is normal.",
                (Query(_sum("elasticjob_jobs", SHOULD_TRAIN)),),
                width=4,
                height=4,
                steps=((GREEN, None), (YELLOW, 1.0)),
            ),
            Panel(
                "stat",
                "Jobs that wait for fencing",
                "Nothing proves that the last round of these jobs has stopped. They wait until their nodes "
                "are heard again, or a person says that they are off.",
                (Query(_sum("elasticjob_jobs", WAITS_FOR_FENCING)),),
                width=4,
                height=4,
                steps=_PROBLEM,
                runbooks=(FENCING,),
            ),
            Panel(
                "stat",
                "Unreadable jobs",
                "The operator cannot read these jobs and leaves them alone: the Event StatusUnreadable or "
                "StatusTooNew says why.",
                (Query(_sum("elasticjob_unreadable_jobs")),),
                width=4,
                height=4,
                steps=_WARNING,
            ),
        ),
        (
            Panel(
                "timeseries",
                "Jobs by state",
                "The state of a job is the reason of its condition Training.",
                (Query(f"sum by (state) ({_of('elasticjob_jobs')}) > 0", "{{state}}"),),
                width=8,
                decimals=0,
                area=True,
                colours=STATES,
                if_none="There is no job",
            ),
            Panel(
                "timeseries",
                "Members, standbys and wanted pods",
                "Wanted are replicas and spares of all jobs that should run. If members and standbys stay "
                "below, pods are missing.",
                (
                    Query(_sum("elasticjob_members"), "members"),
                    Query(_sum("elasticjob_standbys"), "standbys"),
                    Query(_sum("elasticjob_wanted_pods"), "wanted"),
                ),
                width=8,
                decimals=0,
            ),
            Panel(
                "state-timeline",
                "Alerts",
                "When which alert of ElasticJob has fired, of all releases.",
                (Query(f"max by (alertname) ({FIRING})", "{{alertname}}"),),
                width=8,
                steps=((RED, None),),
                if_none="None has fired",
            ),
        ),
    ),
)

BREAKS = Row(
    "What breaks training?",
    (
        (
            Panel(
                "timeseries",
                "Rounds by cause",
                "Rounds that began, by why the round before ended. Started is the first round of a job.",
                (_count("elasticjob_rounds_total", "cause", "{{cause}}"),),
                width=8,
                decimals=0,
                bars=True,
                if_none="No round has begun",
            ),
            Panel(
                "timeseries",
                "Charges by cause and account",
                "Restarts that count against a limit of the job.",
                (_count("elasticjob_charges_total", "cause, account", "{{cause}} ({{account}})"),),
                width=8,
                decimals=0,
                bars=True,
                if_none="Nothing was charged",
            ),
            Panel(
                "timeseries",
                "Jobs that have ended",
                "Complete or Failed, with the reason of that condition.",
                (_count("elasticjob_finished_jobs_total", "outcome, reason", "{{outcome}}: {{reason}}"),),
                width=8,
                decimals=0,
                bars=True,
                if_none="No job has ended",
            ),
        ),
        (
            Panel(
                "bargauge",
                "Nodes on which jobs have just failed",
                "Jobs whose last root failure was on this node, in the last 10 minutes, with the zone. "
                "Three jobs on one node are mostly the fault of the node.",
                (
                    Query(
                        f"sort_desc(max by (node, zone) ({_of('elasticjob_node_failed_jobs')}))",
                        "{{node}} {{zone}}",
                    ),
                ),
                width=8,
                steps=((YELLOW, None), (RED, 3.0)),
                if_none="None",
                runbooks=(NODE, ZONE),
            ),
            Panel(
                "table",
                "Jobs with the fewest restarts left",
                "Charges left in each account that has a limit. When a failure finds none left, the job is "
                "Failed.",
                (
                    Query(
                        "sort(bottomk(10, min by (job_namespace, job_name, account) "
                        f"({_of('elasticjob_job_charges_left')})))"
                    ),
                ),
                width=8,
                steps=((RED, None), (ORANGE, 1.0), (GREEN, 2.0)),
                columns={
                    "job_namespace": "Namespace",
                    "job_name": "Job",
                    "account": "Account",
                    "Value": "Left",
                },
                if_none="No job has a limit",
                runbooks=(RESTARTS,),
            ),
            Panel(
                "table",
                "Training jobs by the time since their last new step",
                "Only jobs that report steps. The status has this time once a minute, so a minute is normal.",
                (
                    Query(
                        "sort_desc(topk(10, time() - max by (job_namespace, job_name) "
                        f"({_of('elasticjob_job_last_step_timestamp_seconds')}) "
                        "and on (job_namespace, job_name) "
                        f"max by (job_namespace, job_name) ({_of('elasticjob_job_state', TRAINS)}) "
                        "== 1))"
                    ),
                ),
                width=8,
                unit="s",
                steps=((GREEN, None), (ORANGE, 600.0), (RED, 1800.0)),
                columns={"job_namespace": "Namespace", "job_name": "Job", "Value": "Since"},
                if_none="No training job reports steps",
                runbooks=(NO_PROGRESS,),
            ),
        ),
        (
            Panel(
                "stat",
                "Goodput",
                "The share of the time shown that went into steps that did not have to be repeated, of all "
                "jobs that report steps.",
                (Query(_goodput("$__range")),),
                width=4,
                unit="percentunit",
                most=1,
                steps=((RED, None), (ORANGE, 0.8), (GREEN, 0.9)),
                if_none="No job reports steps",
                runbooks=(GOODPUT,),
            ),
            Panel(
                "timeseries",
                "Goodput of the hour before",
                "As the alert has it: below 80 % it fires, if more than ten minutes were lost as well.",
                (Query(_goodput("1h"), "goodput"),),
                width=7,
                unit="percentunit",
                most=1,
                steps=((RED, None), (GREEN, 0.8)),
                limit=True,
                if_none="No job reports steps",
                runbooks=(GOODPUT,),
            ),
            Panel(
                "timeseries",
                "Lost time by cause",
                "Time without progress, by the cause of the round that followed; repeated steps are a part "
                "of it. It is counted when the next step has come.",
                (_count("elasticjob_lost_seconds_total", "cause", "{{cause}}"),),
                width=7,
                unit="s",
                bars=True,
                if_none="Nothing was lost",
                runbooks=(GOODPUT,),
            ),
            Panel(
                "timeseries",
                "Of that, repeated steps",
                "Time in steps that had to be trained again, because they came after the last checkpoint.",
                (
                    Query(
                        f"sum(increase({_of('elasticjob_repeated_seconds_total')}[$__rate_interval]))",
                        "repeated steps",
                    ),
                ),
                width=6,
                unit="s",
                bars=True,
                if_none="No job reports steps",
                runbooks=(GOODPUT,),
            ),
        ),
    ),
)

HOW_LONG = Row(
    "How long does it take?",
    (
        (
            Panel(
                "timeseries",
                "Until a loss is noticed",
                "Where that is known, by the account of the round's end. Each point is for the hour before.",
                _quantiles("elasticjob_detection_seconds"),
                width=8,
                unit="s",
                if_none="No loss in the hour before",
            ),
            Panel(
                "timeseries",
                "Rendezvous: until all members have met",
                "From the end of the round before, by the account of that end. Each point is for the hour "
                "before.",
                _quantiles("elasticjob_rendezvous_seconds"),
                width=8,
                unit="s",
                if_none="No round in the hour before",
            ),
            Panel(
                "timeseries",
                "Until the first step",
                "From the end of the round before, by the account of that end: rendezvous, and then the "
                "start of the workers, loading, and the step itself. Each point is for the hour before.",
                _quantiles("elasticjob_first_step_seconds"),
                width=8,
                unit="s",
                if_none="No first step in the hour before",
            ),
        ),
    ),
)

ONE_JOB = Row(
    "One job: $job_namespace/$job_name",
    (
        (
            Panel(
                "stat",
                "Round",
                "The number of the job's round. Numbers only grow.",
                (Query(f"max({_of_job('elasticjob_job_round')})"),),
                width=4,
                height=4,
                steps=_PLAIN,
                if_none="It has ended",
            ),
            Panel(
                "stat",
                "Restarts",
                "Charges over the job's whole life, in all accounts.",
                (Query(f"max({_of_job('elasticjob_job_restarts_total')})"),),
                width=4,
                height=4,
                steps=_PLAIN,
            ),
            Panel(
                "stat",
                "Charges left",
                "Charges left, by account, where the account has a limit.",
                (Query(f"min by (account) ({_of_job('elasticjob_job_charges_left')})", "{{account}}"),),
                width=4,
                height=4,
                steps=((RED, None), (ORANGE, 1.0), (GREEN, 2.0)),
                if_none="No limit",
                runbooks=(RESTARTS,),
            ),
            Panel(
                "stat",
                "Since the last new step",
                "The status has this time once a minute.",
                (Query(f"time() - max({_of_job('elasticjob_job_last_step_timestamp_seconds')})"),),
                width=4,
                height=4,
                unit="s",
                steps=((GREEN, None), (ORANGE, 600.0), (RED, 1800.0)),
                if_none="It reports no steps",
                runbooks=(NO_PROGRESS,),
            ),
            Panel(
                "stat",
                "Goodput of the job",
                "Over the job's whole life.",
                (Query(f"max({_of_job('elasticjob_job_goodput_ratio')})"),),
                width=4,
                height=4,
                unit="percentunit",
                most=1,
                steps=((RED, None), (ORANGE, 0.8), (GREEN, 0.9)),
                if_none="It reports no steps",
            ),
            Panel(
                "stat",
                "Lost time of the job",
                "Time without progress over the job's whole life.",
                (Query(f"max({_of_job('elasticjob_job_lost_seconds')})"),),
                width=4,
                height=4,
                unit="s",
                steps=_PLAIN,
                if_none="It reports no steps",
            ),
        ),
        (
            Panel(
                "state-timeline",
                "State",
                "The state of the job over time: the reason of its condition Training.",
                (Query(f"max by (state) ({_of_job('elasticjob_job_state')})", "{{state}}"),),
                width=6,
                steps=_PLAIN,
                colours=STATES,
            ),
            Panel(
                "timeseries",
                "Members",
                "Members of the running round, standbys, the pods that the job asks for, and the members "
                "without which it does not train.",
                (
                    Query(f"max({_of_job('elasticjob_job_members')})", "members"),
                    Query(f"max({_of_job('elasticjob_job_standbys')})", "standbys"),
                    Query(f"max({_of_job('elasticjob_job_wanted_pods')})", "wanted"),
                    Query(f"max({_of_job('elasticjob_job_min_replicas')})", "at least"),
                ),
                width=6,
                decimals=0,
                if_none="It has ended",
            ),
            Panel(
                "timeseries",
                "Step",
                "The highest step that was reported. The status has it once a minute.",
                (Query(f"max({_of_job('elasticjob_job_step')})", "step"),),
                width=6,
                decimals=0,
                if_none="It reports no steps",
            ),
            Panel(
                "timeseries",
                "New steps per second",
                "Of the five minutes before. Steps that are repeated are not new.",
                (Query(f"max(clamp_min(deriv({_of_job('elasticjob_job_step')}[5m]), 0))", "steps"),),
                width=6,
                unit="suffix: /s",
                if_none="It reports no steps",
            ),
        ),
    ),
)

OPERATOR = Row(
    "The operator",
    (
        (
            Panel(
                "state-timeline",
                "Which pod leads",
                "Each pod of the operator: one leads, the others stand by.",
                (Query(f"max by (pod) ({_of('elasticjob_leading')})", "{{pod}}"),),
                width=8,
                names={"1": ("leads", GREEN), "0": ("stands by", "super-light-blue")},
                runbooks=(NO_LEADER,),
            ),
            Panel(
                "stat",
                "Takeovers",
                "How often a pod has begun to lead, in the time shown.",
                (Query(f"sum(increase({_of('elasticjob_takeovers_total')}[$__range]))"),),
                width=4,
                decimals=0,
                steps=_PLAIN,
            ),
            Panel(
                "timeseries",
                "Objects that cannot be written",
                "What the API server refuses: a job's status, a pod, a Lease, a Role. A job whose status is "
                "refused stands still at its next loss.",
                (Query(_sum("elasticjob_failing_writes"), "objects"),),
                width=8,
                decimals=0,
                steps=_PROBLEM,
                runbooks=(WRITES_FAIL,),
            ),
            Panel(
                "stat",
                "Version",
                "What runs, and with which Python. Two versions are normal during an upgrade.",
                (
                    Query(
                        f"count by (version, python) ({_of('elasticjob_build_info')})",
                        "{{version}}, Python {{python}}",
                    ),
                ),
                width=4,
                steps=_PLAIN,
                text="name",
            ),
        ),
        (
            Panel(
                "timeseries",
                "Passes",
                "A pass is one look at one job: observe, plan, act. Those that fail are tried again.",
                (
                    Query(_per_second("elasticjob_pass_seconds_count"), "succeeded"),
                    Query(
                        _per_second("elasticjob_failed_passes_total", "error")
                        + ' or label_replace(vector(0), "error", "none", "", "")',
                        "failed: {{error}}",
                    ),
                ),
                width=6,
                unit="suffix: /s",
                runbooks=(PASSES_LATE,),
            ),
            Panel(
                "timeseries",
                "Time of a pass",
                "What nine of ten passes stay below, and of that the planner's part, which has no input or "
                "output.",
                (
                    Query(_quantile(0.9, "elasticjob_pass_seconds"), "pass: 9 of 10"),
                    Query(_quantile(0.5, "elasticjob_pass_seconds"), "pass: half"),
                    Query(_quantile(0.9, "elasticjob_plan_seconds"), "planner: 9 of 10"),
                ),
                width=6,
                unit="s",
                runbooks=(PASSES_LATE,),
            ),
            Panel(
                "timeseries",
                "Queue",
                "Jobs that are due and wait for a turn, passes under way, and requests that wait for a turn.",
                (
                    Query(_sum("elasticjob_queued_jobs"), "queued jobs"),
                    Query(_sum("elasticjob_passes_under_way"), "passes under way"),
                    Query(_sum("elasticjob_throttled_requests"), "requests that wait"),
                ),
                width=6,
                decimals=0,
                runbooks=(PASSES_LATE,),
            ),
            Panel(
                "timeseries",
                "Longest wait for a pass",
                "For how long the job has been waiting that has waited longest for a pass to succeed.",
                (Query(f"max({_of('elasticjob_oldest_due_seconds')})", "longest wait"),),
                width=6,
                unit="s",
                steps=((GREEN, None), (RED, 30.0)),
                limit=True,
                runbooks=(PASSES_LATE,),
            ),
        ),
        (
            Panel(
                "timeseries",
                "Requests to the API server",
                "Each try is a request of its own. Without those that watch jobs.",
                (
                    Query(
                        _per_second("elasticjob_api_requests_total", "verb, resource"),
                        "{{verb}} {{resource}}",
                    ),
                ),
                width=8,
                unit="reqps",
            ),
            Panel(
                "timeseries",
                "Requests without success",
                "By the code of the answer; none is no answer at all. A few 409 are normal.",
                (
                    Query(
                        _per_second("elasticjob_api_requests_total", "verb, resource, code", NO_SUCCESS),
                        "{{code}} {{verb}} {{resource}}",
                    ),
                ),
                width=8,
                unit="reqps",
                if_none="All have succeeded",
                runbooks=(PASSES_LATE, WRITES_FAIL),
            ),
            Panel(
                "timeseries",
                "Time until the API server answers",
                "What nine of ten requests stay below, without watches.",
                (Query(_quantile(0.9, "elasticjob_api_request_seconds", ", verb"), "{{verb}}"),),
                width=8,
                unit="s",
                runbooks=(PASSES_LATE,),
            ),
        ),
        (
            Panel(
                "timeseries",
                "Age of watches",
                "Time since a watch has brought something. The API server sends a bookmark each minute.",
                (Query(f"max by (kind, pod) ({_of('elasticjob_watch_age_seconds')})", "{{kind}} {{pod}}"),),
                width=8,
                unit="s",
                steps=((GREEN, None), (RED, 180.0)),
                limit=True,
                runbooks=(WATCH_BLIND,),
            ),
            Panel(
                "timeseries",
                "Gaps in watches",
                "How often a watch may have missed something. The operator then lists all objects of that "
                "kind.",
                (
                    Query(
                        f"sum by (kind) (increase({_of('elasticjob_watch_gaps_total')}[$__rate_interval]))",
                        "{{kind}}",
                    ),
                ),
                width=8,
                decimals=0,
                bars=True,
                runbooks=(WATCH_BLIND,),
            ),
            Panel(
                "timeseries",
                "Delay of the event loop",
                "By how much the event loop is late, on average. More than a tenth of a second is too much "
                "for too little CPU.",
                (
                    Query(
                        "max by (pod) "
                        f"(rate({_of('elasticjob_event_loop_lag_seconds_sum')}[$__rate_interval]) / "
                        f"rate({_of('elasticjob_event_loop_lag_seconds_count')}[$__rate_interval]))",
                        "{{pod}}",
                    ),
                ),
                width=8,
                unit="s",
                steps=((GREEN, None), (RED, 0.1)),
                limit=True,
                runbooks=(PASSES_LATE,),
            ),
        ),
        (
            Panel(
                "timeseries",
                "Cores in use",
                "CPU time of each pod per second. One core is all that a pod can use.",
                (
                    Query(
                        f"max by (pod) (rate({_of('process_cpu_seconds_total')}[$__rate_interval]))",
                        "{{pod}}",
                    ),
                ),
                width=8,
            ),
            Panel(
                "timeseries",
                "Memory",
                "Resident memory of each pod. It grows with the number of jobs and pods.",
                (Query(f"max by (pod) ({_of('process_resident_memory_bytes')})", "{{pod}}"),),
                width=8,
                unit="bytes",
            ),
            Panel(
                "timeseries",
                "Jobs without series of their own",
                "There are more jobs than metrics.maxJobs: the others are in no panel that names jobs.",
                (Query(_sum("elasticjob_jobs_without_series"), "jobs"),),
                width=8,
                decimals=0,
            ),
        ),
    ),
)

ROWS = (ALL_IS_WELL, BREAKS, HOW_LONG, ONE_JOB, OPERATOR)


def made() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return dashboard(
        uid="elasticjob",
        title="ElasticJob",
        description="Elastic PyTorch training: its jobs, what breaks them, and the operator.",
        rows=ROWS,
        variables=VARIABLES,
    )


def file() -> str:
    """What stands in `charts/elasticjob/files/dashboard.json`."""
    return text(made())
