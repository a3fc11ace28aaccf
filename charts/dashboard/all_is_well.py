"""Is all well?"""

from __future__ import annotations

from charts.dashboard.queries import (
    FENCING,
    FIRING,
    NO_LEADER,
    PROBLEM,
    SHOULD_TRAIN,
    STATES,
    TRAINS,
    WAITS_FOR_FENCING,
    WARNING,
    of,
    sum_of,
)
from charts.grafana import GREEN, RED, YELLOW, Panel, Query, Row

ALL_IS_WELL = Row(
    "Is all well?",
    (
        (
            Panel(
                "stat",
                "Leading operators",
                "One leads. With none, training goes on, but no loss is noticed and no job starts.",
                (Query(f"sum({of('elasticjob_leading')}) or vector(0)"),),
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
                steps=PROBLEM,
            ),
            Panel(
                "stat",
                "Jobs that train",
                "Jobs in the state Training.",
                (Query(sum_of("elasticjob_jobs", TRAINS)),),
                width=4,
                height=4,
            ),
            Panel(
                "stat",
                "Jobs that should train and do not",
                "New, WaitingForPods, FormingRound, WaitingForFencing or Establishing. Soon after a failure "
                "this is normal.",
                (Query(sum_of("elasticjob_jobs", SHOULD_TRAIN)),),
                width=4,
                height=4,
                steps=((GREEN, None), (YELLOW, 1.0)),
            ),
            Panel(
                "stat",
                "Jobs that wait for fencing",
                "Nothing proves that the last round of these jobs has stopped. They wait until their nodes "
                "are heard again, or a person says that they are off.",
                (Query(sum_of("elasticjob_jobs", WAITS_FOR_FENCING)),),
                width=4,
                height=4,
                steps=PROBLEM,
                runbooks=(FENCING,),
            ),
            Panel(
                "stat",
                "Unreadable jobs",
                "The operator cannot read these jobs and leaves them alone: the Event StatusUnreadable or "
                "StatusTooNew says why.",
                (Query(sum_of("elasticjob_unreadable_jobs")),),
                width=4,
                height=4,
                steps=WARNING,
            ),
        ),
        (
            Panel(
                "timeseries",
                "Jobs by state",
                "The state of a job is the reason of its condition Training.",
                (Query(f"sum by (state) ({of('elasticjob_jobs')}) > 0", "{{state}}"),),
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
                    Query(sum_of("elasticjob_members"), "members"),
                    Query(sum_of("elasticjob_standbys"), "standbys"),
                    Query(sum_of("elasticjob_wanted_pods"), "wanted"),
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
