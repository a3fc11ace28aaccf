"""Keeps the status within the size of an object that etcd accepts, at any size that the definition allows
(I13).

etcd accepts 1.5 MiB for the whole object, of which the status may use 1.1 MiB. A job of thousands would need
more if all its participants wait and have long names and messages. What is left out first can be read
elsewhere or is missed least; ``status.omitted`` says what it was. What a round consists of always stays: ids,
pods, UIDs, slots, ranks and states of its members, the nonce, and the attempts.
managedFields are not counted: they are small as long as the long lists are atomic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.status import JobStatus, ParticipantStatus

MAX_STATUS_BYTES = 1024**2 * 11 // 10
KEPT_WAITING = 100
KEPT_NAMES = 100
KEPT_CHARGES = 5
_KEPT_OF_MESSAGE = 20
_FRAME = len('{"id":"","podName":"","podUID":"","state":""},')
_FIELD = len(',"":')
_NOT_PLAIN = re.compile(r'[^ -~]|["\\<>&]')
_SMALL = 400
"""This many participants always fit."""

Step = tuple[str, Callable[[JobStatus], JobStatus]]


def trim(status: JobStatus, limit: int = MAX_STATUS_BYTES) -> JobStatus:
    """The status in no more than ``limit`` bytes, as far as that can be, and what is left out said in it."""
    if limit >= MAX_STATUS_BYTES and len(status.participants) <= _SMALL and not status.omitted:
        return status
    left_out: list[str] = []
    status = replace(status, omitted="")
    for said, step in _STEPS:
        if size(status) + 500 <= limit:  # with room for the sentence
            break
        less = step(status)
        if less != status:
            status = less
            left_out.append(said)
    return (
        replace(status, omitted=f"left out to keep the status within 1.1 MiB: {'; '.join(left_out)}")
        if left_out
        else status
    )


def size(status: JobStatus) -> int:
    """The bytes of the status in etcd, or a few more."""
    rest = replace(status, participants=())
    return _bytes(json.dumps(status_json.dump(rest), separators=(",", ":"))) + sum(
        map(_size, status.participants)
    )


def _size(entry: ParticipantStatus) -> int:
    """Bytes of one participant: as ``json`` would say, in a tenth of the time."""
    size = _FRAME
    for name, number in (
        ("slot", entry.slot),
        ("groupRank", entry.group_rank),
        ("localWorldSize", entry.local_world_size),
        ("containerRestarts", entry.container_restarts or None),
    ):
        if number is not None:
            size += _FIELD + len(name) + len(str(number))
    for name, text in (("nodeName", entry.node_name), ("message", entry.message)):
        if text:
            size += _FIELD + len(name) + 2
    texts = (entry.id, entry.pod_name, entry.pod_uid, entry.state, entry.node_name, entry.message)
    together = "".join(texts)
    return size + (len(together) if _NOT_PLAIN.search(together) is None else sum(map(_text, texts)))


def _text(text: str) -> int:
    return (len(text) if text.isascii() else 6 * len(text)) + _escapes(text)


def _escapes(text: str) -> int:
    """What quotes, backslashes and the API server's ``<`` in place of <, > and & add."""
    return sum(5 * text.count(sign) for sign in '"\\<>&')


def _bytes(text: str) -> int:
    return len(text) + sum(5 * text.count(sign) for sign in "<>&")


def _waiting(
    keep: Callable[[list[ParticipantStatus]], Iterable[ParticipantStatus]],
) -> Callable[[JobStatus], JobStatus]:
    def step(status: JobStatus) -> JobStatus:
        waiting = [entry for entry in status.participants if entry.group_rank is None]
        return replace(status, participants=status.members() + tuple(keep(waiting)))

    return step


def _of_members(change: Callable[[ParticipantStatus], ParticipantStatus]) -> Callable[[JobStatus], JobStatus]:
    def step(status: JobStatus) -> JobStatus:
        others = tuple(entry for entry in status.participants if entry.group_rank is None)
        return replace(status, participants=tuple(map(change, status.members())) + others)

    return step


def _history(status: JobStatus) -> JobStatus:
    return replace(
        status,
        round_history=tuple(
            replace(h, end=replace(h.end, message=_cut(h.end.message, 100))) if h.end is not None else h
            for h in status.round_history
        ),
    )


def _names(status: JobStatus) -> JobStatus:
    r = status.current_round
    return replace(
        status,
        current_round=replace(
            r,
            unarrived_pods=r.unarrived_pods[:KEPT_NAMES],
            ineligible_leaders=r.ineligible_leaders[:KEPT_NAMES],
        ),
    )


def _sentences(status: JobStatus) -> JobStatus:
    return replace(
        status,
        conditions=tuple(replace(c, message=_cut(c.message, 1_000)) for c in status.conditions),
        ignored_pods=tuple(replace(i, message=_cut(i.message, 100)) for i in status.ignored_pods),
        excluded_nodes=tuple(replace(n, message=_cut(n.message, 100)) for n in status.excluded_nodes),
        accounts=tuple(
            replace(
                a, charges=tuple(replace(c, message=_cut(c.message, _KEPT_OF_MESSAGE)) for c in a.charges)
            )
            for a in status.accounts
        ),
    )


def _charges(status: JobStatus) -> JobStatus:
    return replace(status, accounts=tuple(account.counted(KEPT_CHARGES) for account in status.accounts))


def _cut(text: str, length: int) -> str:
    """Also the shortest message says that there is one."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


_STEPS: tuple[Step, ...] = (
    (
        "nodes and messages of waiting participants",
        _waiting(
            lambda waiting: (replace(w, node_name="", local_world_size=None, message="") for w in waiting)
        ),
    ),
    (f"waiting participants beyond {KEPT_WAITING}", _waiting(lambda waiting: waiting[:KEPT_WAITING])),
    (
        "long messages of members",
        _of_members(lambda m: replace(m, message=_cut(m.message, _KEPT_OF_MESSAGE))),
    ),
    ("long messages of rounds", _history),
    ("members' nodes", _of_members(lambda m: replace(m, node_name="", local_world_size=None))),
    (f"all but {KEPT_NAMES} names in unarrivedPods and ineligibleLeaders", _names),
    ("all other long messages", _sentences),
    ("all waiting participants", _waiting(lambda _: ())),
    (f"charges (all counted) beyond the newest {KEPT_CHARGES} of each account", _charges),
    ("members' messages after the first character", _of_members(lambda m: replace(m, message=m.message[:1]))),
    # Pods of members that are lost are then deleted half a minute late.
    ("all messages of members", _of_members(lambda m: replace(m, message=""))),
    (
        "newcomers",
        lambda status: replace(status, current_round=replace(status.current_round, newcomers=())),
    ),
    ("all rounds but the last", lambda status: replace(status, round_history=status.round_history[:1])),
)
"""What is missed least comes first."""
