"""How long does that take?"""

from __future__ import annotations

from charts.dashboard.queries import quantiles
from charts.grafana import Panel, Row

HOW_LONG = Row(
    "How long does it take?",
    (
        (
            Panel(
                "timeseries",
                "Until a loss is noticed",
                "Where that is known, by the account of the round's end. Each point is for the hour before.",
                quantiles("elasticjob_detection_seconds"),
                width=8,
                unit="s",
                if_none="No loss in the hour before",
            ),
            Panel(
                "timeseries",
                "Rendezvous: until all members have met",
                "From the end of the round before, by the account of that end. Each point is for the hour "
                "before.",
                quantiles("elasticjob_rendezvous_seconds"),
                width=8,
                unit="s",
                if_none="No round in the hour before",
            ),
            Panel(
                "timeseries",
                "Until the first step",
                "From the end of the round before, by the account of that end: rendezvous, and then the "
                "start of the workers, loading, and the step itself. Each point is for the hour before.",
                quantiles("elasticjob_first_step_seconds"),
                width=8,
                unit="s",
                if_none="No first step in the hour before",
            ),
        ),
    ),
)
