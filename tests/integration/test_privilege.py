"""What a pod can do to others with its own token: nothing. Real pods, the tokens in their own volumes, a real
API server with the chart's admission policy, the real operator with the chart's rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from charts.generate import MANIFESTS
from devcluster.api import ApiClient
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from elasticjob.contract.names import (
    JOB_LABEL,
    PARTICIPANT_ANNOTATION,
    ROUND_ANNOTATION,
    members_lease,
)
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import RoundReport
from elasticjob.contract.round_record import RoundRecord
from tests.integration.lifecycle_job import PlayedJob
from tests.integration.pod_identity import APPLY, JSON_PATCH, MERGE, Identity, Request

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

DEADLINE = 90.0
LIE = "10.66.66.66:6666"
POLICY = "elasticjob-own-lease-only"
NOT_MINE = "belongs to the pod of that name, and this is the token of"
WATCHED = "pods,leases,elasticjobs,serviceaccounts,roles,rolebindings,networkpolicies,secrets,configmaps"


@pytest.fixture
def policy(installed: Cluster) -> Iterator[None]:
    """The chart's admission policy, in the cluster for one test."""
    every = yaml.safe_load_all(MANIFESTS.read_text())
    mine = yaml.safe_dump_all(one for one in every if one and one["metadata"]["name"] == POLICY)
    installed.kubectl("apply", "-f", "-", input=mine)
    yield
    installed.kubectl("delete", "-f", "-", input=mine)


def record(number: int) -> str:
    """A participant record, each with an id of its own, that claims an address of another pod."""
    return ParticipantRecord(f"identity{number}", "Joining", LIE).dump()


def may_write(one: Identity, number: int) -> None:
    """Announce it, once the authorizer knows the Role."""
    wait_for(
        lambda: one.announce(participant=record(number)).ok,
        DEADLINE,
        f"{one.pod} may write its Lease",
        interval=0.1,
    )


def in_force(me: Identity, peer: Identity) -> None:
    """Wait until the API server judges by the policy. RBAC alone would let ``me`` write ``peer``'s Lease;
    that there is none yet, and nothing of a participant's in this one, does not make the name free."""
    path = me.lease(peer.pod, "fieldManager=elasticjob&force=true&dryRun=All")
    taken = Request("PATCH", path, me.body(peer.pod), APPLY, says=NOT_MINE)
    wait_for(lambda: not taken.wrong(me.client), DEADLINE, "the policy is in force", interval=0.1)


def state(job: PlayedJob) -> dict[str, str]:
    """The version of everything in the namespace."""
    answer = job.cluster.kubectl("-n", job.namespace, "get", WATCHED, "-o", "json")
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
        for one in json.loads(answer.stdout)["items"]
    }


def allowed(me: Identity) -> list[Request]:
    """All that the handler needs."""
    round_lease = f"{me.job}-round"
    only = f"fieldSelector=metadata.name%3D{round_lease}"
    return [
        Request("GET", me.lease(round_lease), expected=200),
        Request("GET", me.lease(query=only), expected=200),
        Request("GET", me.lease(query=f"{only}&watch=1&timeoutSeconds=1"), expected=200),
        Request("GET", me.lease(members_lease(me.job)), expected=404),
        Request("GET", me.lease(me.pod), expected=200),
        Request(
            "PATCH", me.lease(me.pod), {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}, MERGE, 200
        ),
    ]


def of_leases(me: Identity, peer: Identity, other: Identity) -> list[Request]:
    """Other Leases: of the peer, the round, another job, a node, the operators, nobody."""
    held, theirs = {"spec": {"holderIdentity": me.uid}}, {"spec": {"holderIdentity": peer.uid}}
    word, round_lease = PARTICIPANT_ANNOTATION, me.lease(f"{me.job}-round")
    forged = me.body(f"{me.job}-round", round=RoundRecord("uid", 99, "Broken").dump())
    bare = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    everybody = "/apis/coordination.k8s.io/v1/leases"
    found = [
        # The peer's: as itself, as the peer, by taking words away or the label that the policy goes by.
        Request("PATCH", me.lease(peer.pod), held, MERGE, says=NOT_MINE),
        Request("PATCH", me.lease(peer.pod), theirs, MERGE, says=NOT_MINE),
        Request(
            "PATCH", me.lease(peer.pod), {"metadata": {"annotations": {word: None}}}, MERGE, says=NOT_MINE
        ),
        Request(
            "PATCH",
            me.lease(peer.pod),
            {"metadata": {"labels": {JOB_LABEL: None}}},
            MERGE,
            says=NOT_MINE,
        ),
        Request(
            "PATCH",
            me.lease(peer.pod, "fieldManager=elasticjob&force=true"),
            me.body(peer.pod),
            APPLY,
            says=NOT_MINE,
        ),
        Request(
            "PATCH",
            me.lease(peer.pod),
            [{"op": "remove", "path": "/metadata/annotations"}],
            JSON_PATCH,
            says=NOT_MINE,
        ),
        Request("PUT", me.lease(peer.pod), me.body(peer.pod)),
        Request("DELETE", me.lease(peer.pod)),
        # The round's.
        *(
            Request("PATCH", round_lease, body, kind)
            for body, kind in (
                ({"metadata": {"annotations": {ROUND_ANNOTATION: "{}"}}}, MERGE),
                ({"metadata": {"labels": {"x": "y"}}}, MERGE),
                (forged, APPLY),
                ([{"op": "remove", "path": "/metadata/annotations"}], JSON_PATCH),
            )
        ),
        Request("PUT", round_lease, forged),
        Request("DELETE", round_lease),
        *(
            Request("PATCH", me.lease(members_lease(me.job)), me.body(members_lease(me.job)), kind)
            for kind in (MERGE, APPLY)
        ),
        Request("DELETE", me.lease(members_lease(me.job))),
        Request("GET", me.lease(members_lease("other"))),
        Request("GET", me.lease(query=f"fieldSelector=metadata.name%3D{members_lease(me.job)}")),
        # Names of no pod, of another job, and names that only look like one's own.
        *(
            Request("PATCH", me.lease(name, "fieldManager=x&force=true"), me.body(name), APPLY)
            for name in ("somebody", f"{me.job}-7-0", f"{me.pod}x", "other-round", other.pod)
        ),
        Request("POST", me.lease(), me.body("somebody")),
        Request("POST", me.lease(), me.body(me.pod)),
        Request("POST", me.lease(), {**bare, "metadata": {"generateName": f"{me.job}-"}}),
        *(Request("GET", me.lease(name)) for name in ("other-round", other.pod, "somebody")),
        Request(
            "PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-a", held, MERGE
        ),
        Request("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-a"),
        Request("GET", "/apis/coordination.k8s.io/v1/namespaces/elasticjob-system/leases/elasticjob"),
        Request(
            "PATCH",
            "/apis/coordination.k8s.io/v1/namespaces/elasticjob-system/leases/elasticjob",
            held,
            MERGE,
        ),
        # Lists and watches of anything but the round's.
        *(
            Request("GET", me.lease(query=query))
            for query in (
                "limit=1",
                "watch=1&timeoutSeconds=1",
                "labelSelector=elasticjob.dev/job-name%3Djob",
                f"fieldSelector=metadata.name%3D{me.pod}",
                f"fieldSelector=metadata.name%3D{peer.pod}&watch=1&timeoutSeconds=1",
                f"fieldSelector=metadata.name%21%3D{me.job}-round",
                "fieldSelector=metadata.name%3Dother-round&watch=1&timeoutSeconds=1",
            )
        ),
        Request("GET", everybody),
        Request("GET", f"{everybody}?watch=1&timeoutSeconds=1"),
        Request("GET", f"{everybody}?fieldSelector=metadata.name%3D{me.job}-round"),
        Request("DELETE", me.lease()),
        Request("DELETE", me.lease(query=f"fieldSelector=metadata.name%3D{me.job}-round")),
        # Its own, as another pod's, or so that it outlives its pod.
        Request("DELETE", me.lease(me.pod)),
        Request("PUT", me.lease(me.pod), me.body(me.pod)),
        Request("PATCH", me.lease(me.pod), theirs, MERGE, says="holderIdentity is not the UID"),
        Request("PATCH", me.lease(me.pod), {"spec": {"holderIdentity": None}}, MERGE, says="holderIdentity"),
        Request("PATCH", me.lease(me.pod), {"metadata": {"finalizers": ["a.b/c"]}}, MERGE, says="finalizer"),
    ]
    for kind, api, name, uid in (
        ("Pod", "v1", peer.pod, peer.uid),
        ("ElasticJob", "elasticjob.dev/v1alpha1", "job", "uid"),
    ):
        owner = {"apiVersion": api, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": True}
        body = {"metadata": {"ownerReferences": [owner]}}
        found.append(Request("PATCH", me.lease(me.pod), body, MERGE, says="only the pod that writes"))
    return found


def of_the_rest(me: Identity, peer: Identity) -> list[Request]:
    """Everything that is no Lease."""
    core, here = "/api/v1", f"/api/v1/namespaces/{me.namespace}"
    jobs = f"/apis/elasticjob.dev/v1alpha1/namespaces/{me.namespace}/elasticjobs"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{me.namespace}"
    network = f"/apis/networking.k8s.io/v1/namespaces/{me.namespace}/networkpolicies"
    admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    label, touch = {"metadata": {"labels": {"x": "y"}}}, {"metadata": {"annotations": {"x": "y"}}}
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    accounts = f"{here}/serviceaccounts"
    operator = "/api/v1/namespaces/elasticjob-system/serviceaccounts/elasticjob"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mine", "labels": {JOB_LABEL: me.job}},
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    }
    cluster_admin = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "mine"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": me.namespace}],
    }
    more = {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
    return [
        *(Request("GET", f"{jobs}{path}") for path in ("", "/job", "/job/status", "/job/scale", "/other")),
        Request("PATCH", f"{jobs}/job", {"spec": {"replicas": 9}}, MERGE),
        Request("PATCH", f"{jobs}/job/status", {"status": {"currentRound": {"number": 9}}}, MERGE),
        Request("PATCH", f"{jobs}/job/scale", {"spec": {"replicas": 9}}, MERGE),
        Request("DELETE", f"{jobs}/job"),
        Request("POST", jobs, {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob"}),
        Request("GET", f"{jobs}?watch=1&timeoutSeconds=1"),
        *(
            Request("GET", f"{here}/{kind}")
            for kind in (
                "secrets",
                "configmaps",
                "pods",
                "services",
                "endpoints",
                "events",
                "serviceaccounts",
                "persistentvolumeclaims",
                "replicationcontrollers",
                "resourcequotas",
                "limitranges",
            )
        ),
        *(
            Request("GET", f"{core}/{kind}")
            for kind in ("secrets", "nodes", "namespaces", "persistentvolumes")
        ),
        Request("GET", f"{here}/secrets/any"),
        Request("GET", f"{here}/secrets?watch=1&timeoutSeconds=1"),
        Request("GET", f"{here}/configmaps/kube-root-ca.crt"),
        Request("GET", f"{here}/pods/{me.pod}"),
        Request("GET", f"{here}/pods/{peer.pod}/log"),
        Request("POST", f"{here}/pods/{peer.pod}/exec?command=id", {}),
        Request("PATCH", f"{here}/pods/{me.pod}", label, MERGE),
        Request("PATCH", f"{here}/pods/{peer.pod}/status", touch, MERGE),
        Request("PATCH", f"{here}/pods/{peer.pod}/ephemeralcontainers", touch, MERGE),
        Request("POST", f"{here}/pods/{peer.pod}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction"}),
        Request("DELETE", f"{here}/pods/{peer.pod}"),
        Request("DELETE", f"{here}/pods/{me.pod}"),
        Request("DELETE", f"{here}/pods"),
        Request("POST", f"{here}/pods", pod),
        Request("POST", f"{here}/events", {"apiVersion": "v1", "kind": "Event"}),
        Request("PATCH", "/api/v1/nodes/node-a", label, MERGE),
        Request("DELETE", f"/api/v1/namespaces/{me.namespace}"),
        # Another identity.
        *(
            Request("POST", f"{account}/token", token)
            for account in (f"{accounts}/job-elasticjob", f"{accounts}/other-elasticjob", operator)
        ),
        Request("POST", f"{accounts}/default/token", token),
        *(
            Request("GET", f"{here}/secrets", headers={"Impersonate-User": user})
            for user in ("admin", "system:serviceaccount:elasticjob-system:elasticjob", "system:anonymous")
        ),
        Request(
            "GET", f"{here}/secrets", headers={"Impersonate-User": "x", "Impersonate-Group": "system:masters"}
        ),
        Request("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", {}),
        Request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {}),
        Request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {}),
        # More rights.
        Request("GET", f"{rbac}/roles/job-elasticjob"),
        Request("PATCH", f"{rbac}/roles/job-elasticjob", more, MERGE),
        Request("PATCH", f"{rbac}/rolebindings/job-elasticjob", touch, MERGE),
        Request("POST", f"{rbac}/rolebindings", cluster_admin),
        Request("PATCH", f"{accounts}/job-elasticjob", touch, MERGE),
        Request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
        # What guards it.
        Request("PATCH", f"{network}/job-elasticjob", {"spec": {"ingress": [{}]}}, MERGE),
        Request("DELETE", f"{network}/job-elasticjob"),
        Request("GET", network),
        Request("DELETE", f"{admission}/elasticjob-own-lease-only"),
        Request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
        Request("GET", "/metrics"),
        Request("GET", "/logs/"),
        Request("GET", "/debug/pprof/"),
    ]


def trains(job: PlayedJob, pods: list[Identity]) -> dict[str, Any]:
    """Wait for round 1, and let its leader report it by its own token; returns status.currentRound."""
    job.wait_for(lambda: job.status().get("currentRound", {}).get("phase") == "Active", "the first round")
    now: dict[str, Any] = job.status()["currentRound"]
    leader = next(pod for pod in pods if pod.pod == now["leaderPodName"])
    report = {
        "elasticjob.dev/report": RoundReport(
            job.status()["internal"]["round"]["nonce"], established=True
        ).dump()
    }
    body = {"metadata": {"annotations": report}}
    assert leader.client.request("PATCH", leader.lease(leader.pod), body, content_type=MERGE).ok
    job.is_true("Training")
    return now


@pytest.mark.usefixtures("policy")
# shows: a token that is bound to no pod writes a Lease of a job (the chart's admission policy)
# shows: writes the Lease of another pod of its job
# shows: takes the Lease name of a pod that has not announced itself yet
# shows: writes the round, or deletes it
# shows: writes the job, its status or its scale, its Role, its NetworkPolicy
# shows: reads secrets, configmaps, pods, or lists Leases
# shows: takes another identity: a token for another service account, impersonation, a ...
# shows: belongs to another job
# shows: uses a token that is bound to no pod
# shows: lies in its own Lease: another address, another holder, another job's label, a round ...
# shows: keeps its Lease after it is gone, by a finalizer or another owner
# shows: a token is stolen and used after its pod is gone
def test_a_pods_token_opens_its_own_lease_and_nothing_else(job: PlayedJob) -> None:
    cluster, namespace = job.cluster, job.namespace
    assert isinstance(cluster, Cluster)
    patient = {"establishTimeoutSeconds": 300, "heartbeatTimeoutSeconds": 300}
    other_job = PlayedJob(cluster, namespace, "other")
    job.apply(rendezvous=patient)
    other_job.apply(replicas=1, rendezvous=patient)
    job.runs("job-0-0", "job-1-0")
    other_job.runs("other-0-0")
    me, peer = (Identity.of(cluster, namespace, f"job-{slot}-0", "job") for slot in (0, 1))
    other = Identity.of(cluster, namespace, "other-0-0", "other")

    may_write(me, 0)
    in_force(me, peer)
    may_write(peer, 1)
    now = trains(job, [me, peer])

    def refused(client: ApiClient, *requests: Request) -> None:
        wrong = [text for request in requests if (text := request.wrong(client))]
        assert not wrong, "\n".join(wrong)

    refused(me.client, *allowed(me))
    before = state(job)
    attacks = [*of_leases(me, peer, other), *of_the_rest(me, peer)]
    refused(me.client, *attacks)
    assert state(job) == before, f"nothing has changed by {len(attacks)} requests"
    assert job.status()["currentRound"]["number"] == now["number"] == 1

    # The same service account without a pod, and with another one.
    name = me.lease(me.pod)
    account = ("-n", namespace, "create", "token", "job-elasticjob")
    unbound = ApiClient(cluster.server, cluster.ca_file, cluster.kubectl(*account).stdout.strip())
    renewal = {"spec": {"holderIdentity": me.uid}}
    refused(unbound, Request("PATCH", name, renewal, MERGE, says=f"{NOT_MINE} no pod"))
    refused(peer.client, Request("PATCH", name, renewal, MERGE, says=f"{NOT_MINE} pod {peer.pod}"))
    refused(other.client, Request("PATCH", name, renewal, MERGE))

    # In its own Lease it may say what it likes. Of its address the API server is believed, not the pod; under
    # another job's label it is nobody, and a round record counts in one Lease alone.
    leader = job.status()["currentRound"]["leaderPodName"]
    address = job.status()["internal"]["round"]["leaderEndpoint"].rpartition(":")[0]
    assert address == job.pods()[leader]["status"]["podIP"]
    closed = RoundRecord(other_job.get()["metadata"]["uid"], 9, "Closed").dump()
    lies = {"labels": {JOB_LABEL: "other"}, "annotations": {ROUND_ANNOTATION: closed}}
    refused(me.client, Request("PATCH", name, {"metadata": lies}, MERGE, 200))
    may_write(other, 2)
    assert trains(other_job, [other])["number"] == 1
    assert [p["podName"] for p in other_job.status()["participants"]] == ["other-0-0"]

    # Its token ends with it, wherever it has got to.
    cluster.kubectl("-n", namespace, "delete", "pod", other.pod, "--force", "--grace-period=0")
    late = Request("PATCH", other.lease(other.pod), {"spec": {"holderIdentity": other.uid}}, MERGE, 401)
    wait_for(lambda: not late.wrong(other.client), DEADLINE, "the token is nobody's", interval=0.2)
