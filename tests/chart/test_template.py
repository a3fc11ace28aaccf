"""What the chart renders, and what it refuses to render."""

from __future__ import annotations

import shutil
import tarfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import generate
from charts.generate import NAMESPACE
from elasticjob_operator.act import owned_kinds
from elasticjob_operator.act.round_publisher import LeaseRoundPublisher
from elasticjob_operator.act.template import job_identity
from elasticjob_operator.plan.state.model import Job, JobSpec
from elasticjob_operator.settings import NOTICE_TAINTS
from tests.chart.helm import GOLDEN, KEPT, VALUES, Helm, golden, objects, of_kind

CRD = generate.ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"
ROLES = ("ClusterRole", "Role")
GANGS = ("kubernetes", "coscheduling", "volcano")


@pytest.mark.parametrize("name", KEPT)
def test_rendering_is_the_golden_one(helm: Helm, name: str) -> None:
    made = golden(helm.template(VALUES[name]))
    assert made == (GOLDEN / f"{name}.yaml").read_text(), "if it shall be so: python -m tests.chart.helm"


def test_there_is_no_golden_file_of_nothing() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(KEPT)


@pytest.mark.parametrize("name", VALUES)
def test_lint_is_content(helm: Helm, name: str) -> None:
    said = helm.run("lint", "--strict", str(helm.chart), "--values", helm.values_file(VALUES[name])).stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"replicaCount": "two"}, "at '/replicaCount': got string, want integer"),
        ({"replicaCount": -1}, "at '/replicaCount': minimum: got -1, want 0"),
        ({"replica": 3}, "additional properties 'replica' not allowed"),
        (
            {"leaderElection": {"enabled": False}},
            "replicaCount is 2, but without leaderElection.enabled there can be one operator only",
        ),
        (
            {"leaderElection": {"leaseDuration": "9500ms", "renewDeadline": "10s"}},
            "leaseDuration > renewDeadline > retryPeriod > 0, found 9500ms, 10s, ",
        ),
        (
            {"leaderElection": {"renewDeadline": "10s", "retryPeriod": "0.5m"}},
            "retryPeriod > 0, found ",
        ),
        (
            {"leaderElection": {"leaseDuration": "15"}},
            "at '/leaderElection/leaseDuration': '15' does not match",
        ),
        ({"serviceAccount": {"create": False}}, "would be those of every pod in the namespace"),
        (
            {"serviceAccount": {"create": False, "name": "default"}},
            "they would all have the operator's rights",
        ),
        ({"serviceAccount": None}, "missing property 'serviceAccount'"),
        ({"handler": None}, "missing property 'handler'"),
        ({"leaderElection": None}, "missing property 'leaderElection'"),
        (
            {"podLabels": {"app.kubernetes.io/instance": "x"}},
            "podLabels has the label app.kubernetes.io/instance, which the chart sets itself",
        ),
        ({"commonLabels": {"helm.sh/chart": "x"}}, "commonLabels has the label helm.sh/chart"),
        ({"extraEnv": [{"name": "POD_NAME", "value": "x"}]}, "extraEnv has POD_NAME, which the chart sets"),
        ({"serviceAccount": {"name": "a-elasticjob"}}, "is the name of the service account of a job's pods"),
        ({"watchNamespaces": "team-a"}, "at '/watchNamespaces': got string, want array"),
        ({"watchNamespaces": ["Team_A"]}, "at '/watchNamespaces/0': 'Team_A' does not match pattern"),
        ({"watchNamespaces": ["a", "a"]}, "at '/watchNamespaces': items at 0 and 1 are equal"),
        (
            {"image": {"repository": "registry/x:1.0"}},
            "at '/image/repository': 'registry/x:1.0' does not match",
        ),
        ({"image": {"digest": "0123"}}, "at '/image/digest': '0123' does not match pattern"),
        ({"handler": {"image": {"tag": "a b"}}}, "at '/handler/image/tag': 'a b' does not match pattern"),
        (
            {"replicas": 3},
            "replicas is now replicaCount: rename it in your values; with values that an upgrade",
        ),
        ({"env": []}, "env is now extraEnv: rename it"),
        ({"verbose": True}, "verbose is now logging.level (debug for true): rename it"),
        ({"logging": {"format": "xml"}}, "at '/logging/format': value must be one of 'text', 'json'"),
        ({"topologySpreadKeys": ["a"]}, "topologySpreadKeys is now topologySpreadConstraints: rename it"),
        (
            {"image": {"repository": ""}},
            "image.repository is empty, and no image is published yet: build the image and push it "
            "(docs/operate/install.md#images), then name it with --set "
            "image.repository=REGISTRY/elasticjob-operator",
        ),
        (
            {"handler": {"image": {"repository": ""}}},
            "handler.image.repository is empty, and no image is published yet",
        ),
        (
            {"global": {"imageRegistry": "mirror.example"}},
            "image.repository begins with the registry registry.example, and mirror.example is set as its",
        ),
        (
            {"metrics": {"port": 8080}},
            "metrics.port is 8080, and so is probes.port: leave metrics.port empty",
        ),
        (
            {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
            "each pod would be scraped twice; choose one",
        ),
        ({"metrics": {"podMonitor": {"interval": "often"}}}, "at '/metrics/podMonitor/interval'"),
        ({"metrics": {"prometheusRule": {"selector": "job=a"}}}, "at '/metrics/prometheusRule/selector'"),
        ({"metrics": {"prometheusRule": {"selector": 'a="b", '}}}, "at '/metrics/prometheusRule/selector'"),
        ({"metrics": {"prometheusRule": {"runbookUrl": "docs"}}}, "at '/metrics/prometheusRule/runbookUrl'"),
        ({"metrics": {"dashboard": {"namespace": "Monitoring"}}}, "at '/metrics/dashboard/namespace'"),
        ({"metrics": {"dashboard": {"labels": {"a": 1}}}}, "at '/metrics/dashboard/labels/a'"),
        ({"metrics": {"tokenSecret": {"name": "No Name"}}}, "at '/metrics/tokenSecret/name'"),
        ({"handler": {"image": {"pullPolicy": "never"}}}, "at '/handler/image/pullPolicy': value must be"),
        ({"jobDefaults": {"ttlSecondsAfterFinished": "7d"}}, "at '/jobDefaults/ttlSecondsAfterFinished'"),
        ({"jobDefaults": {"activeDeadlineSeconds": 0}}, "at '/jobDefaults/activeDeadlineSeconds'"),
        ({"jobDefaults": {"failurePolicy": {"rules": []}}}, "additional properties 'rules' not allowed"),
        ({"limits": {"maxReplicas": 0}}, "at '/limits/maxReplicas'"),
        ({"limits": {"maxSpares": "many"}}, "at '/limits/maxSpares'"),
        ({"limits": {"namespaces": {"a": {"maxReplicas": 0}}}}, "at '/limits/namespaces/a/maxReplicas'"),
        (
            {"jobDefaults": {"memoryCheckpoints": {"perPod": "8GB"}}},
            "at '/jobDefaults/memoryCheckpoints/perPod'",
        ),
        ({"jobDefaults": {"memoryCheckpoints": {"copies": 1}}}, "properties 'perPod' required"),
        ({"jobDefaults": {"namespaces": {"a": {"ttl": 1}}}}, "additional properties 'ttl' not allowed"),
        ({"nodeNotices": {"taints": ["a=b:NoSchedule"]}}, "at '/nodeNotices/taints/0'"),
        ({"extraArgs": ["verbose"]}, "at '/extraArgs/0': 'verbose' does not match"),
        ({"podDisruptionBudget": {"minAvailable": "half"}}, "at '/podDisruptionBudget/minAvailable'"),
        ({"networkPolicy": {"apiServerPorts": []}}, "at '/networkPolicy/apiServerPorts': minItems"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "at '/topologySpreadConstraints/0': missing"),
        ({"handler": {"image": "x"}}, "at '/handler/image': got string, want object"),
        ({"image": {"pullPolicy": "always"}}, "at '/image/pullPolicy': value must be one of"),
        ({"probes": {"port": 70000}}, "at '/probes/port': maximum: got 70,000, want 65,535"),
        ({"crds": {"keep": "yes"}}, "at '/crds/keep': got string, want boolean"),
        ({"crds": {"enabled": True}}, "at '/crds': additional properties 'enabled' not allowed"),
        ({"nodeSelector": {"gpu": True}}, "at '/nodeSelector/gpu': got boolean, want string"),
        ({"extraEnv": [{"value": "x"}]}, "at '/extraEnv/0': missing property 'name'"),
        (
            {"resources": {"limit": {"memory": "1Gi"}}},
            "at '/resources': additional properties 'limit' not allowed",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_values_are_refused_by_name(helm: Helm, values: dict[str, Any], says: str) -> None:
    assert says in helm.refusal(values)


@pytest.mark.parametrize("seconds", [0, 604_800, 2_147_483_647])
def test_the_time_to_live_reaches_the_operator_in_digits(helm: Helm, seconds: int) -> None:
    (made,) = of_kind(helm, {"jobDefaults": {"ttlSecondsAfterFinished": seconds}}, "Deployment")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    variable = {"name": "ELASTICJOB_DEFAULT_TTL_SECONDS_AFTER_FINISHED", "value": str(seconds)}
    assert variable in container["env"]


def test_labels_of_the_topology_reach_the_operator(helm: Helm) -> None:
    for values, flags in (
        ({}, []),
        ({"topology": {"keys": ["a.example/row", "rack"]}}, ["a.example/row,rack"]),
    ):
        (made,) = of_kind(helm, values, "Deployment")
        (container,) = made["spec"]["template"]["spec"]["containers"]
        given = [flag for flag in container["args"] if flag.startswith("--topology-keys")]
        assert given == [f"--topology-keys={flag}" for flag in flags]


def test_the_taints_of_notice_are_those_that_the_operator_knows(helm: Helm) -> None:
    (made,) = of_kind(helm, {}, "Deployment")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert f"--node-notice-taints={','.join(NOTICE_TAINTS)}" in container["args"]
    (made,) = of_kind(helm, {"nodeNotices": {"taints": []}}, "Deployment")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert "--node-notice-taints=off" in container["args"]


@pytest.mark.parametrize("old", ["replicas", "env", "topologySpreadKeys"])
def test_an_old_name_that_is_set_to_null_is_forgotten(helm: Helm, old: str) -> None:
    assert helm.template({old: None}) == helm.template({})


def test_a_registry_for_all_images_wins_over_that_of_each(helm: Helm) -> None:
    own = {"image": {"registry": "own.example", "repository": "ml/elasticjob-operator"}}
    values = {**own, "handler": {"image": {"repository": "elasticjob-handler", "tag": "2"}}}
    (made,) = of_kind(helm, values, "Deployment")
    assert made["spec"]["template"]["spec"]["containers"][0]["image"].startswith(
        "own.example/ml/elasticjob-o"
    )
    (made,) = of_kind(helm, {**values, "global": {"imageRegistry": "mirror.example:5000"}}, "Deployment")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("mirror.example:5000/ml/elasticjob-operator:")
    assert "mirror.example:5000/elasticjob-handler:2" in {one.get("value") for one in container["env"]}


def test_another_name_of_the_chart_is_that_of_its_objects(helm: Helm) -> None:
    made = objects(helm.template({"nameOverride": "trainer"}))
    (deployment,) = (one for one in made if one["kind"] == "Deployment")
    assert deployment["metadata"]["name"] == "elasticjob-trainer"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "trainer"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("keep", [True, False])
def test_definition_is_that_of_crds(helm: Helm, keep: bool) -> None:
    (made,) = of_kind(helm, {"crds": {"keep": keep}}, "CustomResourceDefinition")
    source = yaml.safe_load(CRD.read_text())
    assert made["spec"] == source["spec"]
    assert made["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    assert made["metadata"].pop("annotations", None) == (
        {"helm.sh/resource-policy": "keep"} if keep else None
    )
    assert made["metadata"] == source["metadata"]


def test_packed_chart_is_the_same(helm: Helm, packed: Path) -> None:
    assert helm.template({}, packed) == helm.template({})


def test_packed_chart_has_what_it_needs_and_nothing_that_lies_about(helm: Helm, tmp_path: Path) -> None:
    chart = tmp_path / "elasticjob"
    shutil.copytree(helm.chart, chart)
    for name in (".DS_Store", "values.yaml~", "values.yaml.orig", "templates/.crd.yaml.swp", "files/x.tmp"):
        (chart / name).write_text("{{ no template }}")
    said = helm.run("package", str(chart), "--destination", str(tmp_path))
    assert said.stderr == ""
    version = yaml.safe_load((helm.chart / "Chart.yaml").read_text())["version"]
    with tarfile.open(tmp_path / f"elasticjob-{version}.tgz") as archive:
        assert all(member.isfile() for member in archive)
        contents = {
            member.name.removeprefix("elasticjob/"): archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
        }
    # helm writes the metadata anew.
    assert contents.pop("Chart.yaml")
    files = [file for file in helm.chart.rglob("*") if file.is_file()]
    expected = {str(file.relative_to(helm.chart)): file.read_bytes() for file in files}
    assert {"README.md", "values.schema.json", f"files/{CRD.name}"} < set(expected)
    assert contents == {
        name: content for name, content in expected.items() if name not in ("Chart.yaml", ".helmignore")
    }


def test_lease_policy_is_the_one_of_the_example(helm: Helm) -> None:
    example = generate.ROOT / "examples" / "indexed-job" / "own-lease-only.yaml"
    policy, binding = objects(example.read_text())
    name = "elasticjob-own-lease-only"
    (made,) = (one for one in of_kind(helm, {}, policy["kind"]) if one["metadata"]["name"] == name)
    (bound,) = (one for one in of_kind(helm, {}, binding["kind"]) if one["metadata"]["name"] == name)
    assert made["spec"] == policy["spec"]
    assert bound["spec"] == {**binding["spec"], "policyName": name}


@pytest.mark.parametrize(
    ("limits", "judged"),
    [
        ({}, {}),
        ({"maxReplicas": 64}, {"replicas": "<= 64", "spares": "<= 64"}),
        ({"maxReplicas": 64, "maxSpares": 0}, {"replicas": "<= 64", "spares": "<= 0"}),
        ({"maxSpares": 2}, {"spares": "<= 2"}),
    ],
    ids=str,
)
def test_sizes_are_judged_on_request(helm: Helm, limits: dict[str, int], judged: dict[str, str]) -> None:
    """Spares are no way round the limit of replicas."""
    policies = of_kind(helm, {"limits": limits}, "ValidatingAdmissionPolicy")
    found = [one["spec"] for one in policies if one["metadata"]["name"] == "elasticjob-limits"]
    validations = [one["expression"] for spec in found for one in spec["validations"]]
    assert len(validations) == len(judged)
    for said, (field, limit) in zip(validations, judged.items(), strict=True):
        assert said.startswith(f"variables.{field} {limit} ")


@pytest.mark.parametrize(
    ("limits", "replicas", "spares"),
    [
        (
            {"maxReplicas": 64, "namespaces": {"a": {"maxReplicas": 128}, "b": {"maxSpares": 0}}},
            ('{"a":128,"b":64}', 64),
            ('{"a":128,"b":0}', 64),
        ),
        ({"namespaces": {"a": {"maxReplicas": 8}}}, ('{"a":8}', 5000), ('{"a":8}', 5000)),
        ({"maxSpares": 2, "namespaces": {"a": {"maxReplicas": ""}}}, ('{"a":5000}', 5000), ('{"a":2}', 2)),
    ],
    ids=str,
)
def test_a_namespace_has_limits_of_its_own(
    helm: Helm, limits: dict[str, Any], replicas: tuple[str, int], spares: tuple[str, int]
) -> None:
    policies = of_kind(helm, {"limits": limits}, "ValidatingAdmissionPolicy")
    (found,) = [one["spec"] for one in policies if one["metadata"]["name"] == "elasticjob-limits"]
    variables = {one["name"]: one["expression"] for one in found["variables"]}
    for name, (own, most) in {"mostReplicas": replicas, "mostSpares": spares}.items():
        assert variables[name] == f"request.namespace in {own} ? {own}[request.namespace] : {most}"
    assert [one["expression"].partition(" ||")[0] for one in found["validations"]] == [
        "variables.replicas <= variables.mostReplicas",
        "variables.spares <= variables.mostSpares",
    ]


def test_who_may_reach_the_operators_ports(helm: Helm) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    nodes = {"ipBlock": {"cidr": "10.0.0.0/16"}}
    policy = {"enabled": True, "metricsFrom": [prometheus], "probesFrom": [nodes]}
    made, *_ = of_kind(helm, {"metrics": {"port": 9091}, "networkPolicy": policy}, "NetworkPolicy")
    assert made["spec"]["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 8080}], "from": [nodes]},
        {"ports": [{"protocol": "TCP", "port": 9091}], "from": [prometheus]},
    ]
    assert "set metrics.port" in helm.refusal({"networkPolicy": policy})
    off = {"metrics": {"port": 9091}, "networkPolicy": {**policy, "enabled": False}}
    assert "nothing would be limited; set it to true" in helm.refusal(off)


def test_what_is_no_jobs_never_meets_the_leader_only_policy(helm: Helm) -> None:
    """An API server looks up the election's Lease for each write that a binding matches, of any client."""
    bindings = [
        one["spec"]
        for one in of_kind(helm, {}, "ValidatingAdmissionPolicyBinding")
        if one["spec"]["policyName"] == "elasticjob-leader-only"
    ]
    assert bindings
    for binding in bindings:
        match = binding["matchResources"]
        of_jobs = [{"key": "elasticjob.dev/job-name", "operator": "Exists"}]
        if match.get("objectSelector", {}).get("matchExpressions") != of_jobs:
            assert {group for rule in match["resourceRules"] for group in rule["apiGroups"]} == {
                "elasticjob.dev"
            }


@pytest.mark.parametrize(
    "values",
    [{}, {"kueue": {"enabled": True}}, *({"gangScheduling": {gang: True}} for gang in GANGS)],
    ids=["default", "kueue", *GANGS],
)
def test_whatever_the_operator_may_write_only_the_leader_may(helm: Helm, values: dict[str, Any]) -> None:
    """A rule for pods does not hold for pods/status: a new write needs its word in the policy, too."""
    writes = {"create", "update", "patch", "delete"}
    (role,) = [one for one in of_kind(helm, values, "ClusterRole") if one["metadata"]["name"] == "elasticjob"]
    written = {
        f"{group}/{resource}"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if writes & set(rule["verbs"])
    }
    policies = of_kind(helm, values, "ValidatingAdmissionPolicy")
    (policy,) = [one for one in policies if one["metadata"]["name"] == "elasticjob-leader-only"]
    judged = {
        f"{group}/{resource}"
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert "/pods/status" in written
    assert written <= judged


def test_flow_schema_is_the_one_that_is_measured(helm: Helm) -> None:
    measured = objects((generate.ROOT / "benchmarks" / "flow-schema.yaml").read_text())
    values = {"flowSchema": {"enabled": True}}
    (level,) = of_kind(helm, values, "PriorityLevelConfiguration")
    schema, _ = of_kind(helm, values, "FlowSchema")
    assert [level["spec"], schema["spec"]] == [one["spec"] for one in measured]
    schema, operator = of_kind(helm, {**values, "watchNamespaces": ["a", "b"]}, "FlowSchema")
    assert schema["spec"]["rules"][0]["resourceRules"][0]["namespaces"] == ["a", "b"]
    assert operator["spec"]["matchingPrecedence"] < schema["spec"]["matchingPrecedence"]


@pytest.mark.parametrize("name", VALUES)
# shows: it is taken over
def test_no_role_has_a_wildcard_or_a_secret(helm: Helm, name: str) -> None:
    roles = [one for one in objects(helm.template(VALUES[name])) if one["kind"] in ROLES]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            assert not {"*", "secrets"} & {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert "nodes" not in rule["resources"] or set(rule["verbs"]) <= {"list", "watch"}


@pytest.mark.parametrize("name", ["default", "watch-namespaces"])
def test_operator_holds_what_it_grants(helm: Helm, name: str) -> None:
    kind = "Role" if VALUES[name].get("watchNamespaces") else "ClusterRole"
    role = of_kind(helm, VALUES[name], kind)[0]
    held = {right for rule in role["rules"] for right in _rights(rule)}
    job = Job("team-a", "mnist", "uid", 1, JobSpec(template={"spec": {"containers": []}}))
    granted = owned_kinds.rules(("mnist-0-0",), LeaseRoundPublisher.reading(job))
    assert {right for rule in granted for right in _rights(rule)} <= held


def test_with_namespaces_nothing_is_cluster_wide(helm: Helm) -> None:
    made = objects(helm.template(VALUES["watch-namespaces"]))
    scopes = {(one["kind"], one["metadata"].get("namespace")) for one in made}
    assert {namespace for _, namespace in scopes} == {NAMESPACE, "team-a", "team-b"}


@pytest.mark.parametrize("release", ["mnist", "mnist-elasticjob", "x" * 39, "x" * 30 + "-elasticjob"])
# shows: a job is named so that it owns what the operator has
def test_nothing_is_named_like_what_a_job_owns(helm: Helm, release: str) -> None:
    """The operator would write a job's Role over its own, and lose its rights to that job's creator."""
    values = {**VALUES["watch-namespaces"], "fullnameOverride": ""}
    made = helm.run("template", release, str(helm.chart), "--values", helm.values_file(values)).stdout
    names = {one["metadata"]["name"] for one in objects(made)}
    assert any(name.startswith(release) for name in names)
    assert not {name for name in names if name.endswith(job_identity(Job("team-a", "", "uid", 1, JobSpec())))}


def test_generated_manifests_are_those_of_the_chart() -> None:
    assert generate.MANIFESTS.read_text() == generate.manifests(), "run python -m charts.generate"


def test_manifests_say_nothing_of_helm_and_delete_no_job() -> None:
    made = objects(generate.MANIFESTS.read_text())
    assert "Helm" not in str(made)
    assert "CustomResourceDefinition" not in {one["kind"] for one in made}


def _rights(rule: dict[str, Any]) -> product[tuple[str, str, str]]:
    return product(rule["apiGroups"], rule["resources"], rule["verbs"])
