"""The command ``doctor``: looks at the installation and at the user's rights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from elasticjob_client.cli.operators import operator_namespace
from elasticjob_client.cli.options import as_json, connected, now, optional_job_name, output
from elasticjob_client.errors import ClientError, Forbidden, translated_errors

if TYPE_CHECKING:
    from lightkube.models.meta_v1 import LabelSelector
    from rich.text import Text

    from elasticjob_client import Jobs
    from elasticjob_client.explain.checks import Check

_T = TypeVar("_T")
LOG_LINES = 50
"""Log lines of a failed pod that are read: they may say what is wrong with its image."""
_MARKS = {"ok": ("ok", "green"), "failed": ("FAILED", "red"), "unknown": ("?", "yellow")}


@click.command("doctor", short_help="Check the installation, your rights, or a job")
@optional_job_name
@operator_namespace
@output
@connected
def doctor(jobs: Jobs, name: str | None, operator_namespace: str, output: str) -> None:
    """Check server, resource, operator, versions and your rights. Exits with 1 if a check fails.

    With JOB, check its state, command, image, backend, resources and disruption budgets instead, as far as
    the API server knows them.
    """
    from elasticjob_client.cli import columns, installation, screen

    found = (
        _job(jobs, name, operator_namespace)
        if name
        else [
            *installation.resource(jobs),
            *installation.operator(jobs, operator_namespace),
            *installation.rights(jobs),
        ]
    )
    if output == "json":
        as_json({"items": found})
    else:
        rows = [_row(check) for check in found]
        screen.show(columns.Columns(["", "CHECK", "FOUND"], rows, last_wraps=True))
    sys.exit(any(check.result == "failed" for check in found))


def _row(check: Check) -> list[str | Text]:
    from rich.text import Text

    advice = f"; {check.advice}" if check.advice else ""
    return [Text(*_MARKS[check.result]), check.subject, f"{check.found}{advice}"]


def _job(jobs: Jobs, name: str, operator_namespace: str) -> list[Check]:
    from elasticjob_client.cli import installation
    from elasticjob_client.explain import budgets, state, template

    job = jobs.get(name)
    pods, unseen = _allowed("pods", lambda: jobs.pods(name))
    members = {one.pod_name for one in job.members}
    ended = [pod for pod in pods or () if pod.ended and pod.exit_code and pod.name not in members]
    log, unread = _allowed("logs", lambda: jobs.tail(ended[-1], LOG_LINES) if ended else [])
    return [
        state.state(job, pods or [], now()),
        *([] if state.served(job) else installation.operator(jobs, operator_namespace)),
        *template.checks(job, pods, log or ()),
        *(budgets.checks(job, _budgets(jobs)) if budgets.matter(job) else []),
        *unseen,
        *unread,
    ]


def _budgets(jobs: Jobs) -> dict[str, LabelSelector | None]:
    """What the namespace's disruption budgets select, by their names. Nothing if they cannot be listed: the
    check is a hint, which no user needs a right for."""
    from lightkube.resources.policy_v1 import PodDisruptionBudget

    try:
        with translated_errors(f"list PodDisruptionBudgets of namespace {jobs.namespace}", jobs.server):
            return {
                one.metadata.name or "": one.spec.selector
                for one in jobs.client.list(PodDisruptionBudget, namespace=jobs.namespace)
                if one.metadata and one.spec
            }
    except ClientError:
        return {}


def _allowed(subject: str, ask: Callable[[], _T]) -> tuple[_T | None, list[Check]]:
    """The answer; or None, and a check that says why there is none."""
    from elasticjob_client.cli import partial_results
    from elasticjob_client.explain.checks import Check

    try:
        return ask(), []
    except Forbidden as error:
        found, advice = error.reason, "`elasticjob doctor` lists the rights that you have not"
    except ClientError as error:
        found, advice = partial_results.reason(error), "its node may be away: `kubectl get nodes`"
    return None, [Check(result="unknown", subject=subject, found=found, advice=advice)]
