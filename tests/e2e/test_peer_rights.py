"""Who may do what in a run without an operator: a user with ``edit``, an ``admin`` of the namespace, and the
pods. A real API server says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import kubeconfig
from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.agent import messages
from elasticjob.agent.settings import Settings
from elasticjob.api.connection import connect
from elasticjob.api.errors import Forbidden
from elasticjob.api.listing import HttpListApi
from elasticjob.peers.run import RUN_LABEL, round_lease
from tests.e2e.peer_runs import ADMIN, DEADLINE, EDITOR, EXAMPLES, NAME, PeerRun
from tests.integration.pod_identity import APPLY, JSON, JSON_PATCH, MERGE, Identity, Request

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster, pytest.mark.timeout(900)]

ACCOUNT = "torchrun-peers"
LEASES = ("get", "list", "watch", "create", "patch")
NOT_MINE = "belongs to the pod of that name, and this is the token of"


@pytest.fixture
def run(devcluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[PeerRun]:
    """An admin of the namespace has applied rights.yaml; all is gone before the next test begins."""
    with PeerRun(devcluster, namespace, tmp_path / "run") as found:
        yield found


@pytest.fixture
def policy(devcluster: Cluster) -> Iterator[str]:
    """The file of the example's admission policy. It is deleted in the end."""
    file = str(EXAMPLES / "own-lease-only.yaml")
    yield file
    devcluster.kubectl("delete", "-f", file, "--ignore-not-found")


def token(run: PeerRun, account: str) -> str:
    """One of a service account, without a pod."""
    return run.kubectl("", "create", "token", account).strip()


def client(run: PeerRun, account: str) -> ApiClient:
    """The API server as a service account without a pod meets it."""
    return ApiClient(run.cluster.server, run.cluster.ca_file, token(run, account))


def rights() -> dict[str, dict[str, Any]]:
    """What the admin applies, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / "rights.yaml").read_text())}


def ways_to_the_right(run: PeerRun) -> dict[str, Request]:
    """What a user with ``edit`` may try, to give a service account the right on Leases."""
    role, binding = rights()["Role"], rights()["RoleBinding"]
    group = "/apis/rbac.authorization.k8s.io/v1"
    here = f"{group}/namespaces/{run.namespace}"
    mine = {"metadata": {"name": "mine"}}
    default = [{"kind": "ServiceAccount", "name": "default", "namespace": run.namespace}]
    edit = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    every = [{"op": "replace", "path": "/rules/0/verbs", "value": ["*"]}]
    join = [{"op": "add", "path": "/subjects/-", "value": default[0]}]
    to_role, to_edit = ({**mine, "subjects": default, "roleRef": ref} for ref in (binding["roleRef"], edit))
    return {
        "a Role of its own": Request("POST", f"{here}/roles", {**mine, "rules": role["rules"]}),
        "a ClusterRole": Request("POST", f"{group}/clusterroles", {**mine, "rules": role["rules"]}),
        "the Role changed": Request("PATCH", f"{here}/roles/{ACCOUNT}", every, JSON_PATCH),
        "the Role bound": Request("POST", f"{here}/rolebindings", to_role),
        "edit itself bound": Request("POST", f"{here}/rolebindings", to_edit),
        "edit bound everywhere": Request("POST", f"{group}/clusterrolebindings", to_edit),
        "one subject more": Request("PATCH", f"{here}/rolebindings/{ACCOUNT}", join, JSON_PATCH),
    }


def test_edit_may_write_leases_and_in_seven_ways_not_grant_it(run: PeerRun) -> None:
    """It may use the account that an admin has given the right."""
    editor = client(run, EDITOR)
    wait_for(lambda: editor.is_ok(run.leases()), DEADLINE, "edit counts", interval=0.1)
    lease = {"metadata": {"name": round_lease(NAME)}, "spec": {"holderIdentity": "me"}}
    assert editor.request("POST", run.leases(), lease).status == 201
    ways = ways_to_the_right(run)
    assert len(ways) == 7
    wrong = {what: text for what, request in ways.items() if (text := request.wrong(editor))}
    assert not wrong, wrong
    pod = {"metadata": {"name": "mine"}, "spec": {"serviceAccountName": ACCOUNT, "containers": [SLEEPER]}}
    assert editor.request("POST", f"/api/v1/namespaces/{run.namespace}/pods", pod).status == 201


SLEEPER = {"name": "train", "image": "x", "command": ["sleep", "600"]}


def test_an_admin_may_grant_it_and_not_what_only_the_cluster_has(run: PeerRun) -> None:
    for kind in ("Role", "RoleBinding"):
        manifest = rights()[kind]
        manifest["metadata"]["name"] = "mine"
        assert "created" in run.kubectl(ADMIN, "create", "-f", "-", input=json.dumps(manifest))
    role = ("create", "role", "nodes", "--verb=get", "--resource=nodes")
    assert "attempting to grant RBAC permissions not currently held" in run.kubectl(ADMIN, *role, check=False)


def test_an_account_with_nothing_is_refused_and_what_the_pod_prints_mends_it(run: PeerRun) -> None:
    nothing = client(run, "default")
    lease = {"metadata": {"name": "mine"}, "spec": {"holderIdentity": "me"}}
    for request in (
        Request("GET", run.leases()),
        Request("GET", run.leases(query="watch=1&timeoutSeconds=1")),
        Request("GET", run.leases(round_lease(NAME))),
        Request("POST", run.leases(), lease),
        Request("PATCH", run.leases("mine"), lease, MERGE),
        Request("GET", f"/api/v1/namespaces/{run.namespace}/pods"),
    ):
        assert not request.wrong(nothing)

    file = run.folder.with_suffix(".kubeconfig")
    kubeconfig.write(file, run.cluster.server, run.cluster.ca_file, token(run, "default"))
    api = HttpListApi(connect(str(file)), run.namespace)
    with pytest.raises(Forbidden) as refused:
        next(api.follow_leases(RUN_LABEL, NAME))
    settings = Settings(namespace=run.namespace, job=NAME, rounds="peers", pod="mine")
    said = messages.forbidden(settings, str(refused.value), 11)
    run.kubectl(ADMIN, "apply", "-f", "-", input=said[said.index("apiVersion:") :])
    wait_for(lambda: nothing.is_ok(run.leases()), DEADLINE, "the Role counts", interval=0.1)
    assert nothing.request("POST", run.leases(), lease).status == 201


@pytest.mark.parametrize("pods", [True, False], ids=["with pods", "without pods"])
def test_the_pods_account_may_do_what_the_role_says(run: PeerRun, pods: bool) -> None:
    if not pods:
        smaller = json.dumps([{"op": "remove", "path": "/rules/1"}])
        run.kubectl(ADMIN, "patch", "role", ACCOUNT, "--type=json", "-p", smaller)
    account = f"system:serviceaccount:{run.namespace}:{ACCOUNT}"

    def may(verb: str, what: str) -> bool:
        return run.kubectl("", "auth", "can-i", verb, what, f"--as={account}", check=False).startswith("yes")

    assert all(may(verb, "leases.coordination.k8s.io") for verb in LEASES)
    assert not may("delete", "leases.coordination.k8s.io")
    wait_for(lambda: may("watch", "pods") == pods, DEADLINE, "the role counts", interval=0.1)
    assert not may("create", "pods")
    assert not may("get", "secrets")


def sleeper(run: PeerRun, name: str, account: str) -> Identity:
    """A pod that runs, by its token."""
    metadata = {"name": name, "labels": {RUN_LABEL: NAME}}
    spec = {"serviceAccountName": account, "restartPolicy": "Never", "containers": [SLEEPER]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    run.kubectl(EDITOR, "apply", "-f", "-", input=json.dumps(body))
    run.kubectl("", "wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    return Identity.of(run.cluster, run.namespace, name, "")


def lease(who: Identity, name: str, labels: dict[str, str], **metadata: Any) -> dict[str, Any]:
    """A Lease that this pod says it holds."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": {"holderIdentity": who.uid},
    }


def test_with_the_policy_a_pod_writes_its_own_lease_and_rounds_and_no_other(
    run: PeerRun, policy: str
) -> None:
    """That of an election, too, which the Role lets it write."""
    label = {RUN_LABEL: NAME}
    me, peer = (sleeper(run, name, ACCOUNT) for name in ("one", "two"))
    election = {"metadata": {"name": "controller"}, "spec": {"holderIdentity": "leader"}}
    run.kubectl("", "create", "-f", "-", input=json.dumps(lease(me, "controller", {}) | election))
    run.kubectl(
        ADMIN,
        "create",
        "rolebinding",
        "stranger",
        f"--role={ACCOUNT}",
        f"--serviceaccount={run.namespace}:default",
    )
    stranger = sleeper(run, "three", "default")

    def put(who: Identity, body: dict[str, Any], expected: int, says: str = "") -> Request:
        path = who.lease(body["metadata"]["name"], "fieldManager=elasticjob&force=true")
        return Request("PATCH", path, body, APPLY, expected, says)

    take = Request("PATCH", me.lease("controller"), {"spec": {"holderIdentity": me.uid}}, MERGE, 200)
    wait_for(
        lambda: not take.wrong(me.client), DEADLINE, "the Role counts, and allows too much", interval=0.1
    )
    run.cluster.kubectl("apply", "-f", policy)
    stolen = Request(
        "PATCH", me.lease("controller"), {"spec": {"holderIdentity": me.uid + "x"}}, MERGE, 403, NOT_MINE
    )
    wait_for(lambda: not stolen.wrong(me.client), DEADLINE, "the policy is in force", interval=0.1)

    owner = [{"apiVersion": "v1", "kind": "Pod", "name": me.pod, "uid": me.uid}]
    others = [{"apiVersion": "v1", "kind": "Pod", "name": peer.pod, "uid": peer.uid}]
    rounds = Request("POST", me.lease(), lease(me, round_lease(NAME), label), JSON, 201)
    for who, request in (
        (me, put(me, lease(me, me.pod, label, ownerReferences=owner), 201)),
        (peer, put(peer, lease(peer, peer.pod, label), 201)),
        (me, rounds),
        (peer, Request("PATCH", me.lease(round_lease(NAME)), {"spec": {"holderIdentity": "p"}}, MERGE, 200)),
        (me, put(me, lease(me, peer.pod, label), 403, NOT_MINE)),
        (me, put(me, lease(me, peer.pod, {}), 403, NOT_MINE)),
        (me, put(me, lease(me, "new", {}), 403, NOT_MINE)),
        (me, put(me, lease(peer, me.pod, label), 403, "holderIdentity is not the UID")),
        (me, put(me, lease(me, me.pod, label, finalizers=["x/y"]), 403, "a finalizer")),
        (me, put(me, lease(me, me.pod, label, ownerReferences=others), 403, "only the pod that writes")),
        (stranger, put(stranger, lease(stranger, me.pod, label), 403, NOT_MINE)),
        (stranger, put(stranger, lease(stranger, me.pod, {}), 403, NOT_MINE)),
        (stranger, put(stranger, lease(stranger, "elsewhere", {}), 201)),
        (
            Identity(client(run, ACCOUNT), run.namespace, "", "", ""),
            put(me, lease(me, me.pod, label), 403, "no pod"),
        ),
    ):
        assert not (wrong := request.wrong(who.client)), wrong


@pytest.mark.slow
def test_a_run_trains_under_the_policy(run: PeerRun, policy: str) -> None:
    """Through the loss of its coordinator."""
    run.cluster.kubectl("apply", "-f", policy)
    run.apply_until_stopped()
    run.trains(1, members=3)
    run.cluster.nodes.kill_container(run.namespace, run.coordinator())
    run.trains(2, members=3)
    run.stop()
    over = run.closes()
    assert over.outcome == "Complete", over.message
    run.job_is("Complete")
