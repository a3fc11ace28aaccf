"""The largest status that a job can have: all lists are full, all texts are as long as they get."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from elasticjob.contract.reports import MAX_SOURCE
from elasticjob.rounds.reports import MAX_REPORTS
from elasticjob.rounds.state import UnreachableReport
from elasticjob_operator.plan.charges import charging
from elasticjob_operator.plan.charges.backoff import MAX_SLOT_BACKOFFS
from elasticjob_operator.plan.charges.revision import MAX_UNACCOUNTED
from elasticjob_operator.plan.losses.excluded_nodes import MAX_EXCLUDED
from elasticjob_operator.plan.losses.members import MAX_MEMBER_MESSAGE
from elasticjob_operator.plan.planner import MAX_WAITING
from elasticjob_operator.plan.pods.ignored_pods import MAX_IGNORED
from elasticjob_operator.plan.pods.ignored_pods import MAX_MESSAGE as MAX_IGNORED_MESSAGE
from elasticjob_operator.plan.state.evidence import ACCOUNTS
from elasticjob_operator.plan.state.restart_accounts import (
    MAX_CHARGES,
    MAX_OLDER,
    Account,
    Charge,
    OlderCharges,
)
from elasticjob_operator.plan.state.status import (
    MAX_NEWCOMERS,
    MAX_ROUNDS,
    Condition,
    Crossings,
    EarlyFailures,
    ExcludedNode,
    Failure,
    IgnoredPod,
    JobStatus,
    LostTime,
    ParticipantStatus,
    Progress,
    Resumed,
    RoundEnd,
    RoundHistory,
    RoundStatus,
    SlotBackoff,
    UnaccountedMember,
    WorkerStarts,
)

MEMBERS = 5_000
"""``replicas`` and ``spares`` together, as the CRD has it."""
NAME = "a" * 45
NODE = f"node-{'n' * 58}.{'d' * 63}.{'d' * 63}.{'d' * 61}"
WALL = datetime(2026, 1, 1, 12, 34, 56, 789_012, timezone.utc)
LONG = 'worker said "no": <é> & '


def text(length: int) -> str:
    """Of that many characters, not all of them plain."""
    return (LONG * (length // len(LONG) + 1))[:length]


def pod(slot: int, attempt: int = 998) -> str:
    return f"{NAME}-{slot}-{attempt}"


def entry(slot: int, rank: int | None, state: str) -> ParticipantStatus:
    return ParticipantStatus(
        id=f"{slot:08x}{rank or 0:08x}",
        pod_name=pod(slot),
        pod_uid=f"{slot:08x}-aaaa-bbbb-cccc-dddddddddddd",
        state=state,
        slot=slot,
        group_rank=rank,
        node_name=NODE,
        local_world_size=8,
        message=text(MAX_MEMBER_MESSAGE) if rank is not None else "",
    )


END = RoundEnd(WALL, "NotEstablished", "infrastructure", "r" * 63, text(2_500), 10**9)


def account(name: str) -> Account:
    charges = (
        Charge(
            WALL - timedelta(seconds=n),
            n,
            pod(n),
            "NotEstablished",
            NODE,
            text(charging.MAX_MESSAGE),
            counted_with=pod(n),
        )
        for n in range(MAX_CHARGES, 0, -1)
    )
    older = (OlderCharges(WALL - timedelta(hours=n), 99) for n in range(MAX_OLDER, 0, -1))
    return Account(name, 10_000, 360_000, tuple(charges), tuple(older))


def full(members: int = MEMBERS) -> JobStatus:
    """A round of so many is broken, and all have announced themselves anew."""
    names = tuple(pod(slot) for slot in range(members))
    kinds = ("Training", "Suspended", "Complete", "Failed", "Reconciling", "Stalled")
    return JobStatus(
        observed_generation=7,
        conditions=tuple(
            Condition(kind, "False", "WaitingForFencing", text(4_096), WALL.replace(microsecond=0), 7)
            for kind in kinds
        ),
        start_time=WALL,
        active_seconds=10**9,
        replicas=members,
        selector=f"elasticjob.dev/job-name={NAME},!elasticjob.dev/standby",
        min_replicas=members,
        restarts=99_999,
        attempts=(998,) * members,
        charged_pods=tuple(f"{slot}-998" for slot in range(members)),
        current_round=RoundStatus(
            number=9_999,
            phase="Broken",
            nonce="01234567",
            leader_pod_name=names[0],
            leader_endpoint="[fd00:1111:2222:3333:4444:5555:6666:7777]:65535",
            members=members,
            world_size=8 * members,
            crossings=(Crossings("network.topology.nvidia.com/accelerator", members, members, members),) * 14,
            start_time=WALL,
            established_time=WALL,
            cause="NotEstablished",
            account="infrastructure",
            message=text(2_500),
            end=END,
            failure_offset_milliseconds=10**9,
            charged_time=WALL,
            quorum_time=WALL,
            idle_since_time=WALL,
            idle_seconds=9_999,
            establish_failures=9,
            newcomers=names[:MAX_NEWCOMERS],
            newcomers_lost=99_999,
            newcomers_lost_time=WALL,
            unarrived_pods=names[1:],
            ineligible_leaders=names,
            unreachable_reports=tuple(UnreachableReport(name, WALL) for name in names[:MAX_REPORTS]),
            unaccounted_members=tuple(
                UnaccountedMember(name, entry(0, 0, "").pod_uid, 9_998, 1) for name in names[:MAX_UNACCOUNTED]
            ),
            early_failures=tuple(EarlyFailures(name, 9_999, pod(0)) for name in ACCOUNTS),
        ),
        participants=tuple(entry(n, n, "Lost") for n in range(members))
        + tuple(entry(n, None, "Joining") for n in range(members + MAX_WAITING)),
        ignored_pods=tuple(IgnoredPod(pod(n), text(MAX_IGNORED_MESSAGE)) for n in range(MAX_IGNORED)),
        round_history=tuple(
            RoundHistory(
                number=9_999 - n,
                cause="NotEstablished",
                members=members,
                start_time=WALL,
                end=END,
                rendezvous_milliseconds=10**9,
                first_step_milliseconds=10**9,
                first_step=10**9,
                last_step=10**9,
                worker_starts=WorkerStarts(10**8, 10**8, text(200)),
                resumed=Resumed(10**9, 10**9, "m" * MAX_SOURCE, 10**9),
            )
            for n in range(MAX_ROUNDS)
        ),
        accounts=tuple(account(name) for name in ACCOUNTS),
        last_failure=Failure(
            names[0], WALL, text(2_500), 4_999, -9, 9_999, entry(0, 0, "").pod_uid, NODE, text(300)
        ),
        excluded_nodes=tuple(
            ExcludedNode(f"{n}{NODE[3:]}", WALL, text(400), WALL) for n in range(MAX_EXCLUDED)
        ),
        slot_backoffs=tuple(SlotBackoff(n, pod(n), 999, WALL, 999, 999) for n in range(MAX_SLOT_BACKOFFS)),
        progress=Progress(
            10**9,
            10**6,
            97,
            10**6,
            WALL,
            9_999,
            10**9,
            10**12,
            10**12,
            tuple(LostTime(f"NotEstablished{n:02}", 10**12) for n in range(20)),
            WALL,
            lost_round=9_999,
            lost_milliseconds=10**12,
        ),
    )
