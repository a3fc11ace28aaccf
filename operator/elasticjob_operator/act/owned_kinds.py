"""The table of what a job owns beside its pods: ServiceAccount, Role, RoleBinding, NetworkPolicy, PodGroup.

A pod's identity may read the job's round Lease and its member list, and write the Leases that have the names
of the job's pods (docs/operate/permissions.md); an admission policy in the chart narrows the latter to the
pod's own name.

The TCPStores of a round have no authentication. Any process that connects to one can end the training or read
what its members exchange. With ``JobOnly`` the job's pods accept connections only from each other, on all
ports, because torch chooses its ports itself. Policies add up: to open a port, users add a policy of their
own. A job without template has no policy.

By its PodGroup the scheduler places as many pods together as the job does not train without, or none of them
(docs/use/gang.md). The job says whose PodGroup it has, Kubernetes' own or another scheduler's; in which
version there are any, if at all, is the cluster's (``pod_groups``). Where they should be is never said: such
a constraint would hold for all that the job grows by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from elasticjob.contract.names import JOB_LABEL, round_lease
from elasticjob_operator.act.owned import Contents, Needs, OwnedKind, Rule
from elasticjob_operator.act.template import job_identity, service_account
from elasticjob_operator.plan.state.model import GangScheduling, Job, NetworkPolicy, Target

RIGHTS = Target("the pods' ServiceAccount, Role and RoleBinding", "written")
POLICY = Target("the NetworkPolicy", "written")
GROUP = Target("the PodGroup", "written")

_ROUND_ENDING = round_lease("")
_RBAC, _RBAC_PATH = "rbac.authorization.k8s.io/v1", "/apis/rbac.authorization.k8s.io/v1{}"
_NETWORKING = "networking.k8s.io/v1"
_MIN_COUNT = ("spec", "schedulingPolicy", "gang", "minCount")
_MIN_MEMBER = ("spec", "minMember")
"""Of a PodGroup: how many pods are placed together."""


def rules(pod_names: Iterable[str], reading: Iterable[Rule]) -> list[Rule]:
    """The rules of the job's Role. Users may choose the names of pods: a name that could be a round Lease's,
    of this job or another, gives no right."""
    names = sorted(writers(pod_names))
    write = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": names,
        "verbs": ["get", "create", "patch"],
    }
    # Without names a rule would be for every Lease of the namespace.
    return [*reading, write] if names else [*reading]


def writers(pod_names: Iterable[str]) -> Iterator[str]:
    """The names of pods that the Role can have."""
    return (name for name in pod_names if not name.endswith(_ROUND_ENDING))


def writers_in(role: Contents, reading: Iterable[Rule]) -> list[str] | None:
    """The pods that may write a Lease by a Role; None unless it is as this operator writes it."""
    if role is None:
        return None
    try:
        names = next((list(rule["resourceNames"]) for rule in role["rules"] if "patch" in rule["verbs"]), [])
        return names if role["rules"] == rules(names, reading) else None
    except (AttributeError, KeyError, TypeError):
        return None


def _has_own_account(job: Job) -> bool:
    return job.spec.template is not None and service_account(job) is None


def _subjects(job: Job, needs: Needs) -> tuple[str, ...]:
    """The accounts of the job's pods: seen, where others create the pods."""
    if job.spec.template is None:
        return needs.accounts
    return (service_account(job) or job_identity(job),)


def _binding(job: Job, needs: Needs) -> dict[str, Any]:
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": job_identity(job)},
        "subjects": [
            {"kind": "ServiceAccount", "name": account, "namespace": job.namespace}
            for account in _subjects(job, needs)
        ],
    }


def _policy(job: Job, _needs: Needs) -> Contents:
    if job.spec.network_policy != NetworkPolicy.JOB_ONLY:
        return None
    pods = {"matchLabels": {JOB_LABEL: job.name}}
    ingress = [{"from": [{"podSelector": pods}]}]
    return {"spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}}


def gathers(job: Job) -> bool:
    """Whether the job asks for a PodGroup, and has pods."""
    return job.spec.gang_scheduling != GangScheduling.NONE and not job.spec.suspend


def _group(job: Job, needs: Needs, minimum: tuple[str, ...], has_priority: bool) -> dict[str, Any]:
    contents: Any = needs.least
    for key in reversed(minimum):
        contents = {key: contents}
    priority_class = ((job.spec.template or {}).get("spec") or {}).get("priorityClassName")
    if has_priority and priority_class:
        contents["spec"]["priorityClassName"] = priority_class
    return dict(contents)


def _pod_group(
    gang: GangScheduling,
    api_version: str,
    minimum: tuple[str, ...],
    fixed: bool = False,
    has_priority: bool = True,
) -> OwnedKind:
    """``minimum``: the path of how many pods are placed together. ``has_priority``: a group has a priority of
    its own, which counts where a group preempts others."""
    return OwnedKind(
        kind="PodGroup",
        api_version=api_version,
        path=f"/apis/{api_version}{{}}/podgroups",
        fields=("spec",),
        target=GROUP,
        due=lambda job, _needs: gathers(job) and job.spec.gang_scheduling == gang,
        contents=lambda job, needs: _group(job, needs, minimum, has_priority),
        leaf=minimum,
        fixed=fixed,
    )


ACCOUNT = OwnedKind(
    kind="ServiceAccount",
    api_version="v1",
    path="/api/v1{}/serviceaccounts",
    fields=(),
    target=RIGHTS,
    due=lambda job, _needs: _has_own_account(job),
    contents=lambda _job, _needs: {},
)
ROLE = OwnedKind(
    kind="Role",
    api_version=_RBAC,
    path=f"{_RBAC_PATH}/roles",
    fields=("rules",),
    target=RIGHTS,
    due=lambda _job, _needs: True,
    contents=lambda _job, needs: {"rules": rules(needs.pod_names, needs.reading)},
)
BINDING = OwnedKind(
    kind="RoleBinding",
    api_version=_RBAC,
    path=f"{_RBAC_PATH}/rolebindings",
    fields=("roleRef", "subjects"),
    target=RIGHTS,
    due=lambda job, needs: bool(_subjects(job, needs)),
    contents=_binding,
    last=True,  # without being an administrator one can bind only a role that exists
)
NETWORK_POLICY = OwnedKind(
    kind="NetworkPolicy",
    api_version=_NETWORKING,
    path=f"/apis/{_NETWORKING}{{}}/networkpolicies",
    fields=("spec",),
    target=POLICY,
    due=lambda job, _needs: job.spec.template is not None,
    contents=_policy,
)

POD_GROUPS: dict[str, tuple[OwnedKind, ...]] = {
    GangScheduling.KUBERNETES: (
        _pod_group(GangScheduling.KUBERNETES, "scheduling.k8s.io/v1beta1", _MIN_COUNT),
        _pod_group(GangScheduling.KUBERNETES, "scheduling.k8s.io/v1alpha2", _MIN_COUNT, fixed=True),
    ),
    GangScheduling.COSCHEDULING: (
        _pod_group(
            GangScheduling.COSCHEDULING, "scheduling.x-k8s.io/v1alpha1", _MIN_MEMBER, has_priority=False
        ),
    ),
    GangScheduling.VOLCANO: (
        _pod_group(GangScheduling.VOLCANO, "scheduling.volcano.sh/v1beta1", _MIN_MEMBER),
    ),
}
"""By spec.gangScheduling, in the versions of the API, the preferred first. Kubernetes' own is of 1.37, or of
1.36, where it cannot be changed."""

KINDS = (ACCOUNT, ROLE, BINDING, NETWORK_POLICY)
"""Those of every cluster."""
TARGETS = (*dict.fromkeys(kind.target for kind in KINDS), GROUP)


def wanted(job: Job, needs: Needs, kinds: Sequence[OwnedKind] = KINDS) -> dict[OwnedKind, Contents]:
    """What the job is to own, without the kinds that are left alone."""
    return {kind: kind.contents(job, needs) for kind in kinds if kind.due(job, needs)}
