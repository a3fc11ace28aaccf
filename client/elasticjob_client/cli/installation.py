"""What ``doctor`` asks the cluster about the installation and about the user's rights."""

from __future__ import annotations

from importlib.metadata import version

from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview

from elasticjob.contract.names import GROUP
from elasticjob_client import Jobs
from elasticjob_client.cli.operators import LABELS, leads
from elasticjob_client.cli.options import now
from elasticjob_client.errors import Forbidden, NotFound, NotInstalled, translated_errors
from elasticjob_client.explain import checks
from elasticjob_client.explain.checks import Check


def resource(jobs: Jobs) -> list[Check]:
    """Server, resource, and whether an operator looks at the jobs."""
    server = Check(result="ok", subject="server", found=f"{jobs.server} answers")
    try:
        found = jobs.all()
    except NotFound as error:
        return [server, Check(result="failed", subject="namespace", found=str(error))]
    except NotInstalled as error:
        return [server, Check(result="failed", subject="resource", found=str(error))]
    except Forbidden as error:
        advice = "the rights that you need are in the last rows"
        return [server, Check(result="failed", subject="jobs", found=error.reason, advice=advice)]
    return [
        server,
        Check(result="ok", subject="resource", found="the cluster has ElasticJobs"),
        checks.unseen(found, now()),
    ]


def operator(jobs: Jobs, namespace: str) -> list[Check]:
    """Which operator leads, and its version."""
    found = []
    try:
        found.append(checks.leading_operator(leads(jobs, namespace), namespace, now()))
        with translated_errors(f"list Deployments of namespace {namespace}", jobs.server):
            for one in jobs.client.list(Deployment, namespace=namespace, labels=LABELS):
                containers = one.spec.template.spec.containers if one.spec and one.spec.template.spec else []
                image = next((c.image for c in containers if c.name == "operator" and c.image), "")
                found.append(checks.version(image, version("elasticjob-client")))
    except (Forbidden, NotFound):
        text = f"not looked at: you have no right to see namespace {namespace}"
        advice = (
            "ask its administrators to run `elasticjob doctor`; --operator-namespace names another namespace"
        )
        found.append(Check(result="unknown", subject="operator", found=text, advice=advice))
    return found


def rights(jobs: Jobs) -> list[Check]:
    """What the user may do in the namespace."""
    allowed = {}
    with translated_errors("ask for your rights", jobs.server):
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
