"""The health checks of docs/operate/gitops.md, run by the languages that Argo CD and Flux have."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import celpy
import lupa
import pytest
import yaml
from celpy.adapter import json_to_cel

from elasticjob_operator.plan.state import status_json
from tests.docs_commands import ROOT
from tests.scenarios.world import World

PAGE = (ROOT / "docs" / "operate" / "gitops.md").read_text()
TRAINS = ("job replicas=2", "start mnist-0-0 mnist-1-0", "establish")


@dataclass(frozen=True)
class Case:
    """A job, and what is to be said of it."""

    commands: tuple[str, ...]
    argo_cd: str
    flux: str


CASES = {
    "waits for pods": Case(TRAINS[:1], "Progressing", "InProgress"),
    "forms a round": Case(TRAINS[:2], "Progressing", "InProgress"),
    "trains": Case(TRAINS, "Healthy", "InProgress"),
    "between two rounds": Case((*TRAINS, "exit mnist-0-0 1"), "Progressing", "InProgress"),
    "is being suspended": Case((*TRAINS, "suspend"), "Suspended", "InProgress"),
    "suspended": Case((*TRAINS, "suspend", "gone mnist-0-0 mnist-1-0"), "Suspended", "InProgress"),
    "complete": Case(
        (*TRAINS, "succeed mnist-0-0 mnist-1-0", "exit mnist-0-0 0", "exit mnist-1-0 0"),
        "Healthy",
        "Current",
    ),
    "failed": Case(
        (TRAINS[0], "limit application 0", *TRAINS[1:], "fail mnist-0-0", "fail mnist-0-0", "fail mnist-1-0"),
        "Degraded",
        "Failed",
    ),
}


def resource(w: World) -> dict[str, Any]:
    """The job as these tools read it."""
    found = {
        "metadata": {"name": "mnist", "generation": w.job.generation},
        "status": status_json.dump(w.status),
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def unseen() -> dict[str, Any]:
    """A job as the definition's defaults make it, which no operator has looked at."""
    return {"metadata": {"name": "mnist", "generation": 1}, "status": {"observedGeneration": -1}}


def block(begin: str) -> Any:
    """The YAML of the page that begins so."""
    (found,) = re.findall(rf"^```yaml\n({re.escape(begin)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return yaml.safe_load(found)


def by_argo_cd(job: dict[str, Any]) -> tuple[str, str]:
    """Health and message: the script has the resource as ``obj`` and returns a table."""
    (script,) = block("data:")["data"].values()
    lua = lupa.LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(job, recursive=True)
    health = lua.execute(script)
    return str(health["status"]), str(health["message"])


def by_flux(job: dict[str, Any]) -> str:
    """Flux's order: what is in progress, has failed, is current; else it goes on waiting. The fields of the
    resource are the variables."""
    (check,) = block("spec:\n  wait: true")["spec"]["healthCheckExprs"]
    assert (check["apiVersion"], check["kind"]) == ("elasticjob.dev/v1alpha1", "ElasticJob")
    environment = celpy.Environment()
    variables = {name: json_to_cel(value) for name, value in job.items()}
    for name in ("inProgress", "failed", "current"):
        if environment.program(environment.compile(check[name])).evaluate(variables):
            return name[0].upper() + name[1:]
    return "InProgress"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_job_is_judged_as_the_page_says(case: Case) -> None:
    job = resource(World().play(*case.commands))
    health, message = by_argo_cd(job)
    assert (health, by_flux(job)) == (case.argo_cd, case.flux)
    assert message in {one["message"] for one in job["status"]["conditions"]}


def test_a_job_that_no_operator_has_seen_is_waited_for() -> None:
    assert by_argo_cd(unseen()) == ("Progressing", "waiting for the operator")
    assert by_argo_cd({"metadata": {"name": "mnist"}})[0] == "Progressing"
    assert by_flux(unseen()) == "InProgress"


def test_flux_waits_until_the_operator_has_seen_a_change() -> None:
    job = resource(World().play(*CASES["complete"].commands))
    job["metadata"]["generation"] += 1
    assert by_flux(job) == "InProgress"
