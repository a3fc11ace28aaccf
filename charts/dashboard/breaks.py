"""What breaks training?"""

from __future__ import annotations

from charts.dashboard.queries import (
    GOODPUT,
    NO_PROGRESS,
    NODE,
    RESTARTS,
    TRAINS,
    ZONE,
    counted,
    goodput,
    of,
)
from charts.grafana import GREEN, ORANGE, RED, YELLOW, Panel, Query, Row

BREAKS = Row(
    "What breaks training?",
    (
        (
            Panel(
                "timeseries",
                "Rounds by cause",
                "Rounds that began, by why the round before ended. Started is the first round of a job.",
                (counted("elasticjob_rounds_total", "cause", "{{cause}}"),),
                width=8,
                decimals=0,
                bars=True,
                if_none="No round has begun",
            ),
            Panel(
                "timeseries",
                "Charges by cause and account",
                "Restarts that count against a limit of the job.",
                (counted("elasticjob_charges_total", "cause, account", "{{cause}} ({{account}})"),),
                width=8,
                decimals=0,
                bars=True,
                if_none="Nothing was charged",
            ),
            Panel(
                "timeseries",
                "Jobs that have ended",
                "Complete or Failed, with the reason of that condition.",
                (counted("elasticjob_finished_jobs_total", "outcome, reason", "{{outcome}}: {{reason}}"),),
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
                        f"sort_desc(max by (node, zone) ({of('elasticjob_node_failed_jobs')}))",
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
                        f"({of('elasticjob_job_charges_left')})))"
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
                        f"({of('elasticjob_job_last_step_timestamp_seconds')}) "
                        "and on (job_namespace, job_name) "
                        f"max by (job_namespace, job_name) ({of('elasticjob_job_state', TRAINS)}) "
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
                (Query(goodput("$__range")),),
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
                (Query(goodput("1h"), "goodput"),),
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
                (counted("elasticjob_lost_seconds_total", "cause", "{{cause}}"),),
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
                        f"sum(increase({of('elasticjob_repeated_seconds_total')}[$__rate_interval]))",
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
