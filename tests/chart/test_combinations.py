"""Switches of the chart that are on together: the API server takes what is rendered, and all of it fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from devcluster.cluster import Cluster
from elasticjob_operator.__main__ import choose, parse
from tests.chart.combinations import EXCLUDED, SWITCHES, covering, values
from tests.chart.helm import Helm, objects

ROWS = covering()
MONITORING = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator: here anything is one."""


def test_each_two_switches_are_in_all_their_states() -> None:
    for pair in combinations(SWITCHES, 2):
        states = {tuple(name in row for name in pair) for row in ROWS}
        assert len(states) == 4 - (pair in EXCLUDED), pair


def only(made: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in made if one["kind"] == kind]


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_what_is_rendered_fits_together(helm: Helm, number: int) -> None:
    on = ROWS[number]
    made = objects(helm.template(values(on)))
    keys = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in made]
    assert len(keys) == len(set(keys))
    (deployment,) = only(made, "Deployment")
    template = deployment["spec"]["template"]
    labels, (container,) = template["metadata"]["labels"], template["spec"]["containers"]
    for selector in selectors(made):
        assert selector.items() <= labels.items()
    ports = {port["name"] for port in container["ports"]}
    for service in only(made, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for monitor in only(made, "PodMonitor"):
        assert {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert len(only(made, "Service")) >= len(only(made, "ServiceMonitor"))
    roles = {(one["kind"], one["metadata"]["name"]) for one in made if one["kind"].endswith("Role")}
    accounts = {one["metadata"]["name"] for one in only(made, "ServiceAccount")}
    if "account of others" in on:
        accounts.add("made-by-others")
    for binding in (one for one in made if one["kind"].endswith("RoleBinding")):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        assert {one["name"] for one in binding["subjects"]} <= accounts
    assert template["spec"]["serviceAccountName"] in accounts
    policies = {one["metadata"]["name"] for one in only(made, "ValidatingAdmissionPolicy")}
    bound = {one["spec"]["policyName"] for one in only(made, "ValidatingAdmissionPolicyBinding")}
    assert policies == bound


def selectors(made: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """The selectors of all objects that look for the operator's pods."""
    for one in made:
        if one["kind"] in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
            yield one["spec"]["selector"]["matchLabels"]
        if one["kind"] == "Service":
            yield one["spec"]["selector"]
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] in ("elasticjob", "trainer"):
            yield one["spec"]["podSelector"]["matchLabels"]


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_the_operator_reads_what_it_is_given(helm: Helm, number: int) -> None:
    on = ROWS[number]
    (deployment,) = only(objects(helm.template(values(on))), "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environ = {entry["name"]: entry.get("value", "here") for entry in container["env"]}
    settings = choose(parse(container["args"]), environ)
    assert settings.namespaces == (("team-a", "team-b") if "namespaces" in on else ())
    assert (settings.election is None) == ("one pod" in on)
    assert deployment["spec"]["replicas"] == (1 if "one pod" in on else 2)
    assert (settings.metrics.per_job, settings.metrics.max_jobs) == (
        (False, 7) if "sums only" in on else (True, 1000)
    )
    assert (settings.notice_taints == ()) == ("no notices" in on)
    assert settings.job_defaults.ttl_after_finished == (0 if "defaults" in on else None)
    assert settings.handler_image.startswith("mirror.example:5000/") == ("registry" in on)
    served = {port["containerPort"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            port = container[probe]["httpGet"]["port"]
            assert port in served | {one["name"] for one in container["ports"]}


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.devcluster
def test_the_server_takes_every_pair_and_warns_of_nothing(cluster_without_nodes: Cluster, helm: Helm) -> None:
    cluster = cluster_without_nodes
    for kind in MONITORING:
        cluster.kubectl("apply", "-f", "-", input=json.dumps(definition(kind)))
    for kind in MONITORING:
        name = definition(kind)["metadata"]["name"]
        cluster.kubectl("wait", f"crd/{name}", "--for=condition=Established", "--timeout=60s")
    for on in ROWS:
        made = helm.template(values(on))
        for pod in only(objects(made), "Pod"):  # not accepted without its account, not even in a dry run
            meta = {"name": pod["spec"]["serviceAccountName"], "namespace": pod["metadata"]["namespace"]}
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
            cluster.kubectl("apply", "-f", "-", input=json.dumps(account))
        said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=made, check=False)
        assert (said.returncode, said.stderr) == (0, ""), sorted(on)


def definition(kind: str) -> dict[str, Any]:
    plural, anything = f"{kind.lower()}s", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    group = "monitoring.coreos.com"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }
