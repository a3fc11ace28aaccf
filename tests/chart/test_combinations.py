"""Switches of the chart that are on together: the API server takes what is rendered, and all of it fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.generate import CHART
from devcluster.cluster import Cluster
from elasticjob_operator.__main__ import choose, parse
from elasticjob_operator.settings import TOPOLOGY
from tests.chart.combinations import EXCLUDED, LEFT_OUT, SWITCHES, covering, values
from tests.chart.helm import Helm, merged, objects

ROWS = covering()
MONITORING = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator: here anything is one."""


def test_each_two_switches_are_in_all_their_states() -> None:
    for pair in combinations(SWITCHES, 2):
        states = {tuple(name in row for name in pair) for row in ROWS}
        assert len(states) == 4 - (pair in EXCLUDED), pair


@pytest.mark.parametrize("pair", EXCLUDED, ids=" and ".join)
def test_a_pair_that_is_left_out_is_refused(helm: Helm, pair: tuple[str, str]) -> None:
    assert EXCLUDED[pair] in helm.refusal(values(frozenset(pair)))


def test_each_value_is_changed_by_a_switch() -> None:
    """Or it is named, with a reason: a new value of the chart gets a switch."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    changed = {
        path
        for change in SWITCHES.values()
        for path in leaves(defaults)
        if at(merged(defaults, change), path) != at(defaults, path)
    }
    left_out = {".".join(path) for path in leaves(defaults) if path not in changed}
    assert left_out == LEFT_OUT.keys()


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_changes_all_that_it_names(name: str) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    change = SWITCHES[name]
    assert [path for path in leaves(change) if at(change, path) == at(defaults, path)] == []


def leaves(tree: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each value that is no map, or an empty one."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key)


def at(tree: Any, path: tuple[str, ...]) -> Any:
    """The value there; None where there is none."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


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
        if one["kind"] == "NetworkPolicy" and "helm.sh/hook" not in one["metadata"].get("annotations", {}):
            yield one["spec"]["podSelector"]["matchLabels"]


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_what_is_mounted_is_there_and_monitors_send_its_token(helm: Helm, number: int) -> None:
    on = ROWS[number]
    made = objects(helm.template(values(on)))
    (deployment,) = only(made, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    mounted = [one["name"] for one in spec["containers"][0].get("volumeMounts", [])]
    assert sorted(mounted) == sorted(one["name"] for one in spec.get("volumes", []))
    with_token = "token" in on and "no metrics" not in on
    assert ("metrics-token" in mounted, "authorities" in mounted) == (with_token, "volumes" in on)
    sent = {"credentials": {"name": "metrics", "key": "bearer"}} if with_token else None
    for monitor in only(made, "ServiceMonitor") + only(made, "PodMonitor"):
        (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        assert endpoint.get("authorization") == sent


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_the_network_policy_opens_what_is_served_to_those_who_are_named(helm: Helm, number: int) -> None:
    on = ROWS[number]
    made = objects(helm.template(values(on)))
    policies = [one for one in only(made, "NetworkPolicy") if "annotations" not in one["metadata"]]
    asked = on & {"network policy", "more connections", "probes from", "metrics from"}
    assert len(policies) == (1 if asked else 0)
    (deployment,) = only(made, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    named = {"health": "probes from" in on, "metrics": "metrics from" in on}
    for policy in policies:
        rules = policy["spec"]["ingress"][: len(container["ports"])]
        for port, rule in zip(container["ports"], rules, strict=True):
            assert [one["port"] for one in rule["ports"]] == [port["containerPort"]]
            assert ("from" in rule) == named[port["name"]]
        added = len(policy["spec"]["ingress"]) - len(rules)
        assert added == (1 if "more connections" in on else 0)


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_the_job_of_helm_test_is_as_large_as_its_namespace_allows(helm: Helm, number: int) -> None:
    on = ROWS[number]
    (pod,) = only(objects(helm.template(values(on))), "Pod")
    job = json.loads(pod["spec"]["containers"][0]["args"][0])
    in_team_a = job["metadata"]["namespace"] == "team-a"
    assert in_team_a == ("namespaces" in on)
    assert job["spec"]["replicas"] == (1 if in_team_a and "limits of a namespace" in on else 2)


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_the_operator_reads_what_it_is_given(helm: Helm, tmp_path: Path, number: int) -> None:
    on = ROWS[number]
    (deployment,) = only(objects(helm.template(values(on))), "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environ = {entry["name"]: entry.get("value", "here") for entry in container["env"]}
    if "token" in on and "no metrics" not in on:
        (file,) = (tmp_path / path for path in secret_files(spec))
        file.parent.mkdir(parents=True)
        file.write_text("0123456789abcdef")
    args = [arg.replace("=/", f"={tmp_path}/") for arg in container["args"]]
    settings = choose(parse(args), environ)
    assert (settings.metrics.token_file is None) == ("token" not in on or "no metrics" in on)
    assert settings.namespaces == (("team-a", "team-b") if "namespaces" in on else ())
    assert (settings.election is None) == ("one pod" in on)
    assert deployment["spec"]["replicas"] == (1 if "one pod" in on else 2)
    assert (settings.metrics.per_job, settings.metrics.max_jobs) == (
        (False, 7) if "sums only" in on else (True, 1000)
    )
    assert (settings.notice_taints == ()) == ("no notices" in on)
    defaults, of_team = settings.job_defaults, settings.job_defaults.of("team-a")
    assert defaults.ttl_after_finished == (0 if "defaults" in on else None)
    memory = {"perPod": "8Gi", "copies": 0} if "memory checkpoints" in on else None
    assert defaults.memory_checkpoints == memory
    if "defaults of a namespace" in on:
        assert of_team.ttl_after_finished == 3600
        assert of_team.active_deadline == (60 if "defaults" in on else None)
        assert of_team.limits == {**defaults.limits, "idleDeadlineSeconds": 600}
        assert of_team.memory_checkpoints == {"perPod": "2Gi"}
    else:
        assert of_team == defaults
    assert settings.topology == (("a.example/row", "rack") if "topology" in on else TOPOLOGY)
    level = "debug" if "logs" in on else "info"
    assert settings.log.level == ("warning" if "flags" in on else level), "further flags come last"
    assert ("HTTPS_PROXY" in environ) == ("environment" in on)
    assert settings.handler_image.startswith("mirror.example:5000/") == ("registry" in on)
    served = {port["containerPort"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            port = container[probe]["httpGet"]["port"]
            assert port in served | {one["name"] for one in container["ports"]}


def secret_files(spec: dict[str, Any]) -> Iterator[str]:
    """Where the keys of Secrets are in the only container, below the root."""
    mounts = {one["name"]: one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    for volume in spec["volumes"]:
        for item in volume.get("secret", {}).get("items", []):
            yield f"{mounts[volume['name']]}/{item['path']}".lstrip("/")


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
