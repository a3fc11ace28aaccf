"""What a set of values changes beside an installation without them. All else stays as it is there."""

from __future__ import annotations

import re
from typing import Any

from charts.generate import NAMESPACE
from tests.chart.helm import GOLDEN, VALUES, Helm, objects

Id = tuple[str, str, str]
"""An object's kind, namespace and name."""


def by_id(helm: Helm, values: dict[str, Any]) -> dict[Id, dict[str, Any]]:
    """The objects of an installation."""
    made = objects(helm.template(values))
    return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in made}


def changes(before: Any, after: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Both values by path, where they differ. None is absent; of lists of strings, what differs is left."""
    if before == after:
        return {}
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(f".{key}", before.get(key), after.get(key)) for key in {**before, **after}]
    elif isinstance(before, list) and isinstance(after, list):
        if all(isinstance(one, str) for one in (*before, *after)):
            return {path: ([x for x in before if x not in after], [x for x in after if x not in before])}
        if len(before) == len(after):
            pairs = [(f"[{i}]", old, new) for i, (old, new) in enumerate(zip(before, after, strict=True))]
    if not pairs:
        return {path: (before, after)}
    return {at: both for step, old, new in pairs for at, both in changes(old, new, path + step).items()}


class Difference:
    """The second set of values beside the first."""

    def __init__(self, helm: Helm, base: dict[str, Any], values: dict[str, Any]) -> None:
        before, after = by_id(helm, base), by_id(helm, values)
        self.left_out = before.keys() - after.keys()
        self.added = {key: after[key] for key in after.keys() - before.keys()}
        differences = {key: changes(before[key], after[key]) for key in before.keys() & after.keys()}
        self.changed = {f"{key[0]} {key[2]}": found for key, found in differences.items() if found}


ELECTION = {
    ("Role", NAMESPACE, "elasticjob-leader-election"),
    ("RoleBinding", NAMESPACE, "elasticjob-leader-election"),
}


def test_one_pod_needs_no_election_and_never_runs_twice(helm: Helm) -> None:
    found = Difference(helm, {}, VALUES["one-pod"])
    assert found.left_out == ELECTION | {
        ("Lease", NAMESPACE, "elasticjob"),
        ("ValidatingAdmissionPolicy", "", "elasticjob-leader-only"),
        ("ValidatingAdmissionPolicyBinding", "", "elasticjob-leader-only-jobs"),
        ("ValidatingAdmissionPolicyBinding", "", "elasticjob-leader-only-objects"),
    }
    assert not found.added
    (deployment,) = found.changed.values()
    (gone, new) = deployment.pop(".spec.template.spec.containers[0].args")
    assert {arg.partition("=")[0] for arg in gone} == {
        "--leader-elect",
        "--leader-elect-resource-name",
        "--leader-elect-lease-duration",
        "--leader-elect-renew-deadline",
        "--leader-elect-retry-period",
    }
    assert not new
    assert deployment == {
        ".spec.replicas": (2, 1),
        ".spec.strategy.type": ("RollingUpdate", "Recreate"),
        ".spec.strategy.rollingUpdate": ({"maxSurge": 1, "maxUnavailable": 0}, None),
    }


def test_in_some_namespaces_cluster_roles_become_roles_with_the_same_rules(helm: Helm) -> None:
    name = "elasticjob-teams"
    base = {"fullnameOverride": name}
    found = Difference(helm, base, VALUES["watch-namespaces"])
    assert found.left_out == {
        ("CustomResourceDefinition", "", "elasticjobs.elasticjob.dev"),
        *(("ClusterRole", "", f"{name}{suffix}") for suffix in ("", "-nodes", "-edit", "-view")),
        *(("ClusterRoleBinding", "", f"{name}{suffix}") for suffix in ("", "-nodes")),
        *((kind, NAMESPACE, f"{name}-test") for kind in ("Role", "RoleBinding")),
        *(
            ("ValidatingAdmissionPolicy", "", f"{name}-{policy}")
            for policy in ("leader-only", "own-lease-only")
        ),
        *(
            ("ValidatingAdmissionPolicyBinding", "", f"{name}-{policy}")
            for policy in ("leader-only-jobs", "leader-only-objects", "own-lease-only")
        ),
    }
    assert found.added.keys() == {
        *((kind, team, name) for kind in ("Role", "RoleBinding") for team in ("team-a", "team-b")),
        *((kind, "team-a", f"{name}-test") for kind in ("Role", "RoleBinding")),
    }
    before = by_id(helm, base)
    account = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    for team in ("team-a", "team-b"):
        assert found.added["Role", team, name]["rules"] == before["ClusterRole", "", name]["rules"]
        binding = found.added["RoleBinding", team, name]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", name)
        assert binding["subjects"] == [account]
    for kind in ("Role", "RoleBinding"):
        moved = changes(before[kind, NAMESPACE, f"{name}-test"], found.added[kind, "team-a", f"{name}-test"])
        assert moved == {".metadata.namespace": (NAMESPACE, "team-a")}
    args = ".spec.template.spec.containers[0].args"
    assert found.changed.pop(f"Deployment {name}") == {
        args: ([], ["--namespace=team-a", "--namespace=team-b"])
    }
    ((gone,), (new,)) = found.changed.pop(f"Pod {name}-test")[".spec.containers[0].args"]
    assert gone.replace(f'"namespace":"{NAMESPACE}"', '"namespace":"team-a"') == new, "the job of helm test"
    assert not found.changed


def test_what_the_prometheus_operator_needs_changes_nothing_else(helm: Helm) -> None:
    asked = VALUES["prometheus-operator"]
    found = Difference(helm, {key: asked[key] for key in asked if key != "metrics"}, asked)
    assert not found.left_out
    assert not found.changed
    monitor = found.added["PodMonitor", NAMESPACE, "trainer"]
    rule = found.added["PrometheusRule", NAMESPACE, "trainer"]
    dashboard = found.added["ConfigMap", "monitoring", "trainer-dashboard"]
    assert len(found.added) == 3
    for one in (monitor, rule):
        assert one["metadata"]["labels"]["example.com/prometheus"] == "main"
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "health", "interval": "15s"}]
    selected = monitor["spec"]["selector"]["matchLabels"]
    deployment = by_id(helm, asked)["Deployment", NAMESPACE, "trainer"]
    assert selected.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert 'pod=~"trainer-[0-9a-z]+-[0-9a-z]+"' in str(rule["spec"])
    assert dashboard["metadata"]["annotations"] == {"grafana_folder": "Training"}


def test_where_others_make_roles_and_account_only_their_name_is_used(helm: Helm) -> None:
    found = Difference(helm, {}, VALUES["others-make-the-roles"])
    assert found.left_out == ELECTION | {
        *(
            (kind, "", f"elasticjob{s}")
            for kind in ("ClusterRole", "ClusterRoleBinding")
            for s in ("", "-nodes")
        ),
        ("PodDisruptionBudget", NAMESPACE, "elasticjob"),
        ("ServiceAccount", NAMESPACE, "elasticjob"),
    }
    assert not found.added
    after = {one: {path: new for path, (_, new) in diff.items()} for one, diff in found.changed.items()}
    pod, container = ".spec.template.spec", ".spec.template.spec.containers[0]"
    user = f"'system:serviceaccount:{NAMESPACE}:made-by-others'"
    assert after == {
        "Deployment elasticjob": {
            f"{pod}.serviceAccountName": "made-by-others",
            f"{pod}.securityContext": None,
            f"{pod}.topologySpreadConstraints": None,
            f"{container}.securityContext": None,
            f"{container}.resources": None,
        },
        "Pod elasticjob-test": {".spec.securityContext": None, ".spec.containers[0].securityContext": None},
        "ValidatingAdmissionPolicy elasticjob-leader-only": {
            ".spec.matchConditions[0].expression": f"request.userInfo.username == {user}"
        },
    }


def test_another_full_name_is_that_of_all_objects(helm: Helm) -> None:
    definition = "CustomResourceDefinition"
    expected = {
        (kind, namespace, name if kind == definition else name.replace("elasticjob", "trainer", 1))
        for kind, namespace, name in by_id(helm, {})
    }
    assert by_id(helm, {"fullnameOverride": "trainer"}).keys() == expected


def test_every_template_is_rendered_by_a_golden_file_or_has_tests_of_its_own(helm: Helm) -> None:
    source = re.compile(r"^# Source: elasticjob/templates/(\S+)$", re.MULTILINE)
    golden = {name for file in GOLDEN.iterdir() for name in source.findall(file.read_text())}
    folder = helm.chart / "templates"
    templates = {str(file.relative_to(folder)) for file in folder.rglob("*.yaml")}
    # test_alerts_are_those_of_the_file_..., test_the_dashboard_is_that_of_the_file_...
    own = {"alerts.yaml", "dashboard.yaml"}
    assert golden | own == templates
    assert own <= set(source.findall(helm.template(VALUES["prometheus-operator"])))
