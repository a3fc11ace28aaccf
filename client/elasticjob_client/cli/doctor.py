"""The command ``doctor``: looks at the installation and at the user's rights."""

from __future__ import annotations

import sys
from importlib.metadata import version

import click
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from rich.text import Text

from elasticjob_client.cli import screen
from elasticjob_client.cli.operators import LABELS, leads, operator_namespace
from elasticjob_client.cli.options import as_json, connected, now, output
from elasticjob_client.errors import Forbidden, NotInstalled, told
from elasticjob_client.jobs import GROUP, Jobs
from elasticjob_client.tell import checks
from elasticjob_client.tell.checks import Check

_MARKS = {"ok": ("ok", "green"), "failed": ("FAILED", "red"), "unknown": ("?", "yellow")}


@click.command("doctor")
@operator_namespace
@output
@connected
def doctor(jobs: Jobs, operator_namespace: str, output: str) -> None:
    """Check server, resource, operator, versions and your rights. Exit code 1 if one fails."""
    found = [*_resource(jobs), *_operator(jobs, operator_namespace), *_rights(jobs)]
    if output == "json":
        as_json({"items": found})
    else:
        terminal = screen.console()
        terminal.print(
            screen.table(["", "CHECK", "FOUND"], [_row(check) for check in found], last_wraps=True)
        )
    sys.exit(any(check.result == "failed" for check in found))


def _row(check: Check) -> list[str | Text]:
    advice = f"; {check.advice}" if check.advice else ""
    return [Text(*_MARKS[check.result]), check.subject, f"{check.found}{advice}"]


def _resource(jobs: Jobs) -> list[Check]:
    server = Check(result="ok", subject="server", found=f"{jobs.server} answers")
    try:
        found = jobs.all()
    except NotInstalled as error:
        return [server, Check(result="failed", subject="resource", found=str(error))]
    except Forbidden as error:
        return [server, Check(result="failed", subject="jobs", found=str(error))]
    return [
        server,
        Check(result="ok", subject="resource", found="the cluster has ElasticJobs"),
        checks.unseen(found, now()),
    ]


def _operator(jobs: Jobs, namespace: str) -> list[Check]:
    found = []
    try:
        found.append(checks.leader(leads(jobs, namespace), namespace, now()))
        with told(f"list Deployments of namespace {namespace}", jobs.server):
            for one in jobs.client.list(Deployment, namespace=namespace, labels=LABELS):
                containers = one.spec.template.spec.containers if one.spec and one.spec.template.spec else []
                image = next((c.image for c in containers if c.name == "operator" and c.image), "")
                found.append(checks.version(image, version("elasticjob-client")))
    except Forbidden:
        text = f"not looked at: you have no right to see namespace {namespace}"
        found.append(Check(result="unknown", subject="operator", found=text))
    return found


def _rights(jobs: Jobs) -> list[Check]:
    allowed = {}
    with told("ask for your rights", jobs.server):
        for verb, resource in {right for rights in checks.NEEDED.values() for right in rights}:
            name, _, part = resource.partition("/")
            attributes = ResourceAttributes(
                group=GROUP if name == "elasticjobs" else "",
                resource=name,
                subresource=part or None,
                verb=verb,
                namespace=jobs.namespace,
            )
            spec = SelfSubjectAccessReviewSpec(resourceAttributes=attributes)
            answer = jobs.client.create(SelfSubjectAccessReview(spec=spec))
            allowed[verb, resource] = bool(answer.status and answer.status.allowed)
    return checks.rights(allowed, jobs.namespace)
