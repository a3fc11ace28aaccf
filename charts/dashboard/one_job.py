"""One job."""

from __future__ import annotations

from charts.dashboard.queries import NO_PROGRESS, PLAIN, RESTARTS, STATES, of_job
from charts.grafana import GREEN, ORANGE, RED, Panel, Query, Row

ONE_JOB = Row(
    "One job: $job_namespace/$job_name",
    (
        (
            Panel(
                "stat",
                "Round",
                "The number of the job's round. Numbers only grow.",
                (Query(f"max({of_job('elasticjob_job_round')})"),),
                width=4,
                height=4,
                steps=PLAIN,
                if_none="It has ended",
            ),
            Panel(
                "stat",
                "Restarts",
                "Charges over the job's whole life, in all accounts.",
                (Query(f"max({of_job('elasticjob_job_restarts_total')})"),),
                width=4,
                height=4,
                steps=PLAIN,
            ),
            Panel(
                "stat",
                "Charges left",
                "Charges left, by account, where the account has a limit.",
                (Query(f"min by (account) ({of_job('elasticjob_job_charges_left')})", "{{account}}"),),
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
                (Query(f"time() - max({of_job('elasticjob_job_last_step_timestamp_seconds')})"),),
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
                (Query(f"max({of_job('elasticjob_job_goodput_ratio')})"),),
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
                (Query(f"max({of_job('elasticjob_job_lost_seconds')})"),),
                width=4,
                height=4,
                unit="s",
                steps=PLAIN,
                if_none="It reports no steps",
            ),
        ),
        (
            Panel(
                "state-timeline",
                "State",
                "The state of the job over time: the reason of its condition Training.",
                (Query(f"max by (state) ({of_job('elasticjob_job_state')})", "{{state}}"),),
                width=6,
                steps=PLAIN,
                colours=STATES,
            ),
            Panel(
                "timeseries",
                "Members",
                "Members of the running round, standbys, the pods that the job asks for, and the members "
                "without which it does not train.",
                (
                    Query(f"max({of_job('elasticjob_job_members')})", "members"),
                    Query(f"max({of_job('elasticjob_job_standbys')})", "standbys"),
                    Query(f"max({of_job('elasticjob_job_wanted_pods')})", "wanted"),
                    Query(f"max({of_job('elasticjob_job_min_replicas')})", "at least"),
                ),
                width=6,
                decimals=0,
                if_none="It has ended",
            ),
            Panel(
                "timeseries",
                "Step",
                "The highest step that was reported. The status has it once a minute.",
                (Query(f"max({of_job('elasticjob_job_step')})", "step"),),
                width=6,
                decimals=0,
                if_none="It reports no steps",
            ),
            Panel(
                "timeseries",
                "New steps per second",
                "Of the five minutes before. Steps that are repeated are not new.",
                (Query(f"max(clamp_min(deriv({of_job('elasticjob_job_step')}[5m]), 0))", "steps"),),
                width=6,
                unit="suffix: /s",
                if_none="It reports no steps",
            ),
        ),
    ),
)
