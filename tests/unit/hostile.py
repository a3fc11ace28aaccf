"""What a pod may write, at its worst: texts and records for the tests named test_hostile_*."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from elasticjob.contract.names import (
    ATTEMPT_LABEL,
    COMPLETION_INDEX_LABEL,
    FAILURE_ANNOTATION,
    FINISHED_ANNOTATION,
    JOB_LABEL,
    MEMBERS_ANNOTATION,
    PARTICIPANT_ANNOTATION,
    PROGRESS_ANNOTATION,
    REPORT_ANNOTATION,
    RESUMED_ANNOTATION,
    ROUND_ANNOTATION,
    SLOT_LABEL,
    STARTS_ANNOTATION,
)
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import (
    FailureReport,
    ProgressReport,
    ResumedReport,
    RoundReport,
    StartsReport,
)
from elasticjob.contract.round_record import MemberList, RoundRecord

Json = dict[str, Any]

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\nWARNING forged line\u202e\x9b31m\ud800\x00"
NUMBERS = [-1, 0, 1, 2**31, 2**53 - 1, 2**53, 2**63, 10**4000, -(10**400), 0.5, float("nan"), float("inf")]
DEEP = "[" * 60_000
ALMOST_DEEP = 900

text = st.one_of(
    st.just(ESCAPES),
    st.sampled_from(
        ["", "²", "٣", "9" * 4200, "x" * 300, "id-0", "id-1", "id-2", "Joining", "Napping", "10.0.0.1:80"]
    ),
    st.text(max_size=30),
)
number = st.sampled_from(NUMBERS) | st.integers()
value = st.recursive(
    st.none() | st.booleans() | number | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


def vectors(ids: list[str], nonce: str) -> dict[str, str]:
    """A good record of each kind, by annotation."""
    return {
        PARTICIPANT_ANNOTATION: ParticipantRecord(ids[0], "Joining", "10.0.0.1:80").dump(),
        FAILURE_ANNOTATION: FailureReport(1, 0, "worker", 1, 0, 5).dump(),
        REPORT_ANNOTATION: RoundReport(
            nonce, established=True, unarrived_ranks=(0, 1, 2), silent_ranks=(0, 1, 2)
        ).dump(),
        PROGRESS_ANNOTATION: ProgressReport(nonce, 1, 2, 3, 4).dump(),
        STARTS_ANNOTATION: StartsReport(nonce, 1, 2, "why").dump(),
        RESUMED_ANNOTATION: ResumedReport(nonce, 1, "Memory", 3).dump(),
        ROUND_ANNOTATION: RoundRecord(
            "uid", 1, "Active", nonce, tuple(ids), "10.0.0.1:80", size=len(ids), leader_id=ids[0]
        ).dump(),
        MEMBERS_ANNOTATION: MemberList("uid", 1, nonce, tuple(ids)).dump(),
    }


def dumped(fields: object) -> str:
    """As JSON; Python can't write out the longest of the numbers, which is no JSON then."""
    try:
        return json.dumps(fields)
    except ValueError:
        return '{"version": 1' + "0" * 5000 + "}"


@st.composite
def record(draw: st.DrawFn, good: str) -> str:
    """A record that is good, but for some of its fields; or no record at all."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(
            st.text(max_size=60) | st.sampled_from([DEEP, "NaN", '"' * 9, "{}", "[]", "null", "x" * 262_144])
        )
    fields = json.loads(good)
    for key in draw(st.sets(st.sampled_from(sorted(fields)), min_size=0, max_size=3)):
        fields[key] = draw(value)
    if kind == 1:
        fields["version"] = 10**9
        fields["new"] = {"from": ["the", "future"]}
    dump = dumped(fields)
    if kind == 2:  # one key twice; and a value nested just as deeply as can be read
        key = draw(st.sampled_from(sorted(fields)))
        nested = "[" * ALMOST_DEEP + "]" * ALMOST_DEEP
        dump = dump[:-1] + f', "{key}": {nested}' + "}"
    return dump


@st.composite
def lease_annotations(draw: st.DrawFn, ids: list[str], nonce: str = "n1") -> dict[str, str]:
    """The annotations of a Lease."""
    chosen = {}
    for key, good in vectors(ids, nonce).items():
        if draw(st.booleans()):
            chosen[key] = draw(record(good))
    if draw(st.booleans()):
        chosen[FINISHED_ANNOTATION] = draw(st.just(nonce) | text)
    return chosen


@st.composite
def lease(draw: st.DrawFn, job: str, names: list[str], ids: list[str]) -> Json:
    """A Lease with the job's label."""
    name = draw(st.sampled_from(names))
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": f"lease-{name}",
            "resourceVersion": str(draw(st.integers(1, 10**6))),
            "labels": {JOB_LABEL: job},
            "annotations": draw(lease_annotations(ids)),
            "ownerReferences": draw(
                st.sampled_from([[], [{"uid": "uid", "controller": True}], [{"uid": ""}]])
            ),
        },
        "spec": draw(
            st.sampled_from(
                [{}, {"holderIdentity": f"uid-{name}"}, {"holderIdentity": ESCAPES}, {"renewTime": ESCAPES}]
            )
        ),
    }


@st.composite
def pod(draw: st.DrawFn, job: str, names: list[str], owner: str) -> Json:
    """A pod with the job's label: of the job, of another or of none, in any state."""
    name = draw(st.sampled_from(names))
    end = {
        "exitCode": draw(st.sampled_from([0, 1, 137, 255, -(2**31)])),
        "reason": draw(text),
        "message": draw(text),
    }
    state = draw(
        st.sampled_from([{"running": {}}, {"running": {}}, {"running": {}}, {"terminated": end}])
        | st.builds(lambda r, m: {"waiting": {"reason": r, "message": m}}, text, text)
    )
    labels = {
        JOB_LABEL: job,
        SLOT_LABEL: draw(st.sampled_from(["0", "1", "1", "-1", "²", "99999999999999", "a" * 63])),
        ATTEMPT_LABEL: draw(st.sampled_from(["0", "1", "999999", "x"])),
        COMPLETION_INDEX_LABEL: draw(st.sampled_from(["0", "1"])),
    }
    meta: Json = {
        "namespace": "default",
        "name": name,
        "uid": draw(st.sampled_from([f"uid-{name}", f"uid-{name}", f"uid-{names[0]}"])),
        "resourceVersion": str(draw(st.integers(1, 10**6))),
        "labels": draw(st.sampled_from([labels, {JOB_LABEL: job}])),
        "annotations": {
            "elasticjob.dev/avoid-nodes": draw(text),
            "kubectl.kubernetes.io/default-container": draw(text),
        },
        "ownerReferences": [
            {"uid": draw(st.sampled_from([owner, owner, owner, "another"])), "controller": True}
        ],
    }
    if draw(st.integers(0, 9)) == 0:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    condition = {
        "type": draw(st.sampled_from(["DisruptionTarget", "PodScheduled", "Ready"])),
        "status": draw(st.sampled_from(["True", "False"])),
        "reason": draw(text | st.sampled_from(["Unschedulable", "PreemptionByScheduler"])),
        "message": draw(text),
    }
    return {
        "metadata": meta,
        "spec": {"nodeName": draw(st.sampled_from(["", "a", "b"])), "containers": [{"name": "train"}]},
        "status": {
            "phase": draw(
                st.sampled_from(["Pending", "Running", "Running", "Running", "Failed", "Succeeded"])
            ),
            "podIPs": [{"ip": draw(st.sampled_from(["10.0.0.1", "fd00::1"]))}],
            "containerStatuses": [{"name": "train", "state": state, "lastState": {"terminated": end}}],
            "conditions": [condition],
            "reason": draw(text),
            "message": draw(text),
        },
    }
