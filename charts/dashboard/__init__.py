"""What the Grafana dashboard shows; charts/generate.py writes it to `charts/elasticjob/files/dashboard.json`.

Its rows are read from top to bottom: whether all is well, what breaks training, how long that takes, one
job, and the operator itself. It selects the pods of one release as the alerts do.

Counters are increased over `$__rate_interval`, the time between two points and one scrape more, so that
nothing falls between two points. Shares and quantiles of what is rare are over the hour before each point.
"""

from __future__ import annotations

from typing import Any

from charts.dashboard.all_is_well import ALL_IS_WELL
from charts.dashboard.breaks import BREAKS
from charts.dashboard.how_long import HOW_LONG
from charts.dashboard.one_job import ONE_JOB
from charts.dashboard.operator import OPERATOR
from charts.dashboard.queries import PODS, RUNBOOKS_AT
from charts.grafana import dashboard, labels, source, text, textbox

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
