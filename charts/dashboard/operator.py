"""The operator itself."""

from __future__ import annotations

from charts.dashboard.queries import (
    NO_LEADER,
    NO_SUCCESS,
    PASSES_LATE,
    PLAIN,
    PROBLEM,
    WATCH_BLIND,
    WRITES_FAIL,
    of,
    per_second,
    quantile,
    sum_of,
)
from charts.grafana import GREEN, RED, Panel, Query, Row

OPERATOR = Row(
    "The operator",
    (
        (
            Panel(
                "state-timeline",
                "Which pod leads",
                "Each pod of the operator: one leads, the others stand by.",
                (Query(f"max by (pod) ({of('elasticjob_leading')})", "{{pod}}"),),
                width=8,
                names={"1": ("leads", GREEN), "0": ("stands by", "super-light-blue")},
                runbooks=(NO_LEADER,),
            ),
            Panel(
                "stat",
                "Takeovers",
                "How often a pod has begun to lead, in the time shown.",
                (Query(f"sum(increase({of('elasticjob_takeovers_total')}[$__range]))"),),
                width=4,
                decimals=0,
                steps=PLAIN,
            ),
            Panel(
                "timeseries",
                "Objects that cannot be written",
                "What the API server refuses: a job's status, a pod, a Lease, a Role. A job whose status is "
                "refused stands still at its next loss.",
                (Query(sum_of("elasticjob_failing_writes"), "objects"),),
                width=8,
                decimals=0,
                steps=PROBLEM,
                runbooks=(WRITES_FAIL,),
            ),
            Panel(
                "stat",
                "Version",
                "What runs, and with which Python. Two versions are normal during an upgrade.",
                (
                    Query(
                        f"count by (version, python) ({of('elasticjob_build_info')})",
                        "{{version}}, Python {{python}}",
                    ),
                ),
                width=4,
                steps=PLAIN,
                text="name",
            ),
        ),
        (
            Panel(
                "timeseries",
                "Passes",
                "A pass is one look at one job: observe, plan, act. Those that fail are tried again.",
                (
                    Query(per_second("elasticjob_pass_seconds_count"), "succeeded"),
                    Query(
                        per_second("elasticjob_failed_passes_total", "error")
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
                    Query(quantile(0.9, "elasticjob_pass_seconds"), "pass: 9 of 10"),
                    Query(quantile(0.5, "elasticjob_pass_seconds"), "pass: half"),
                    Query(quantile(0.9, "elasticjob_plan_seconds"), "planner: 9 of 10"),
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
                    Query(sum_of("elasticjob_queued_jobs"), "queued jobs"),
                    Query(sum_of("elasticjob_passes_under_way"), "passes under way"),
                    Query(sum_of("elasticjob_throttled_requests"), "requests that wait"),
                ),
                width=6,
                decimals=0,
                runbooks=(PASSES_LATE,),
            ),
            Panel(
                "timeseries",
                "Longest wait for a pass",
                "For how long the job has been waiting that has waited longest for a pass to succeed.",
                (Query(f"max({of('elasticjob_oldest_due_seconds')})", "longest wait"),),
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
                        per_second("elasticjob_api_requests_total", "verb, resource"),
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
                        per_second("elasticjob_api_requests_total", "verb, resource, code", NO_SUCCESS),
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
                (Query(quantile(0.9, "elasticjob_api_request_seconds", ", verb"), "{{verb}}"),),
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
                (
                    Query(
                        f"max by (kind, pod) ({of('elasticjob_watch_age_seconds')})",
                        "{{kind}} {{pod}}",
                    ),
                ),
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
                        f"sum by (kind) (increase({of('elasticjob_watch_gaps_total')}[$__rate_interval]))",
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
                        f"(rate({of('elasticjob_event_loop_lag_seconds_sum')}[$__rate_interval]) / "
                        f"rate({of('elasticjob_event_loop_lag_seconds_count')}[$__rate_interval]))",
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
                        f"max by (pod) (rate({of('process_cpu_seconds_total')}[$__rate_interval]))",
                        "{{pod}}",
                    ),
                ),
                width=8,
            ),
            Panel(
                "timeseries",
                "Memory",
                "Resident memory of each pod. It grows with the number of jobs and pods.",
                (Query(f"max by (pod) ({of('process_resident_memory_bytes')})", "{{pod}}"),),
                width=8,
                unit="bytes",
            ),
            Panel(
                "timeseries",
                "Jobs without series of their own",
                "There are more jobs than metrics.maxJobs: the others are in no panel that names jobs.",
                (Query(sum_of("elasticjob_jobs_without_series"), "jobs"),),
                width=8,
                decimals=0,
            ),
        ),
    ),
)
