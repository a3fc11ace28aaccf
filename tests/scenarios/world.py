"""A job's world for scenarios: pods and Leases in memory, and the real planner over them.

Every command changes the world; then the planner runs until it has nothing more to say, and its
decisions are carried out here as the operator would: status first, then the record, then pods. The
trace of decisions is what a scenario file expects.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from elasticjob.contract.names import STANDBY_LABEL
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core import participant
from elasticjob.rounds.topology import Domains
from elasticjob.rounds.waits import Wait, WaitKey
from elasticjob_operator.act.job_state import Renewals
from elasticjob_operator.observe.removed_pods import kept
from elasticjob_operator.plan.planner import plan, plan_without_status_write
from elasticjob_operator.plan.queue.grants import granted
from elasticjob_operator.plan.state import status_json
from elasticjob_operator.plan.state.grant import Grant
from elasticjob_operator.plan.state.job_waits import sentences
from elasticjob_operator.plan.state.model import (
    Action,
    CreatePod,
    DeleteJob,
    DeletePod,
    Event,
    Exit,
    FailingWrite,
    Job,
    JobSpec,
    Now,
    Observed,
    Participant,
    PatchPod,
    Pod,
)
from elasticjob_operator.plan.state.status import JobStatus
from tests.scenarios.failing import FailureCommands
from tests.scenarios.machines import NodeCommands
from tests.scenarios.operators import OtherOperator, ahead, name_of
from tests.scenarios.participants import ParticipantCommands
from tests.scenarios.prelude import PreludeCommands
from tests.scenarios.refusing import RefusalCommands
from tests.scenarios.spec import SpecCommands
from tests.scenarios.steps import StepCommands
from tests.scenarios.trace import differences, publications, with_events

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB = "mnist"


@dataclass
class World(
    PreludeCommands,
    SpecCommands,
    ParticipantCommands,
    FailureCommands,
    NodeCommands,
    RefusalCommands,
    StepCommands,
):
    """The state of one scenario. ``mono`` is the operator's clock in seconds; its wall clock is off by
    ``wall``. ``reader`` keeps of the round Lease what every participant keeps."""

    job: Job = field(default_factory=lambda: Job("default", JOB, "job-uid", 1, JobSpec(template={})))
    status: JobStatus = field(default_factory=JobStatus)
    record: RoundRecord | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    removed: dict[str, Pod] = field(default_factory=dict)
    node_states: dict[str, str] = field(default_factory=dict)
    domains: dict[str, Domains] = field(default_factory=dict)
    fixed_gang: int | None = None
    leases: dict[str, Participant] = field(default_factory=dict)
    timers: dict[WaitKey, float] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    mono: float = 0.0
    wall: float = 0.0
    version: int = 0
    former: list[RoundRecord] = field(default_factory=list)
    reader: participant.Participant = field(default_factory=participant.Participant)
    other: OtherOperator | None = None
    ids: int = 0
    nonces: int = 0
    wake_at: float | None = None
    others_waiting: int = 0
    renewals: Renewals = field(default_factory=Renewals)
    lease_writes_fail: bool = False
    account_made: datetime = EPOCH - timedelta(seconds=10)
    stands_still: bool = False
    unnoticed: bool = False
    deleted: bool = False
    grant: Grant | None = None
    refused: set[str] = field(default_factory=set)
    failing_writes: tuple[FailingWrite, ...] = ()
    trace: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def play(self, *lines: str) -> World:
        """Carry out command lines, each with the passes that follow."""
        for line in lines:
            self.do(line)
            self.make_passes()
        return self

    # -- commands ------------------------------------------------------------------------------------------

    def do(self, line: str) -> None:
        """Carry out one command line."""
        words = shlex.split(line)
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        names = [word for word in words[1:] if "=" not in word]
        command = getattr(self, f"do_{words[0].replace('-', '_')}")
        command(*names, **options)

    def do_pod(self, *names: str) -> None:
        """A pod that others create appears, running; its number is its slot. One of a name that was there is
        another pod."""
        for name in names:
            slot = name.rpartition("-")[2]
            again = any(member.pod_name == name for member in self.status.members())
            self.pods[name] = Pod(
                name,
                f"uid-{name}" + "-again" * again,
                slot=int(slot) if slot.isdigit() else None,
                node="n",
                running=True,
                ip="1.1.1.1",
                created=self.api_time(),
            )

    def do_stranger(self, name: str, alive: str = "") -> None:
        """A pod of the job's former self still holds this name. ``alive=yes``: a live one, of another job."""
        pod = Pod(name, f"old-{name}", of_this_job=False, deleting=True)
        self.pods[name] = (
            replace(pod, deleting=False, running=True, node="a", ip="10.0.0.9") if alive else pod
        )

    def do_gated(self, *names: str) -> None:
        """The pods have the readiness gate for members."""
        for name in names:
            self.pods[name] = replace(self.pods[name], member_gate=False)

    def do_run(self, *names: str, node: str = "a") -> None:
        """Pods get a node and run."""
        for name in names:
            self.pods[name] = replace(
                self.pods[name], node=node, running=True, ip="10.0.0.1", unschedulable=""
            )

    def do_schedule(self, *names: str, node: str = "a") -> None:
        """Pods get a node and do not run yet."""
        for name in names:
            self.pods[name] = replace(self.pods[name], node=node)

    def do_unschedulable(self, *names: str) -> None:
        """The scheduler finds no node."""
        for name in names:
            self.pods[name] = replace(self.pods[name], unschedulable="0/2 nodes are available")

    def do_start(self, *names: str, node: str = "a") -> None:
        """``run`` and ``join`` in one."""
        for name in names:
            self.do_run(name, node=node)
            self._join(name, 0)

    def do_exit(
        self, name: str, code: str, reason: str = "", pod: str = "", says: str = "", ago: str = ""
    ) -> None:
        """The training container ends; with ``pod=runs`` the pod does not, or its kubelet has not said so;
        with ``pod=sidecar`` another container runs on in it. ``says``: the end of its log; ``ago``: for so
        many seconds it has, by its kubelet."""
        finished = self.now().wall - timedelta(seconds=float(ago)) if ago else None
        failed = int(code) != 0
        self.pods[name] = replace(
            self.pods[name],
            running=False,
            ended=not pod,
            sidecar_running=pod == "sidecar",
            exit=Exit(int(code), reason or ("Error" if failed else ""), says, finished),
        )

    def do_delete(self, *names: str, hook: str = "0", waits: str = "0") -> None:
        """Somebody deletes pods: they get a deletionTimestamp. ``hook=55``: the preStop hook keeps the
        workers alive for up to so many seconds; ``waits``: of which so many are there for the next pod to
        start."""
        for name in names:
            self.pods[name] = replace(
                self.pods[name],
                deleting=True,
                deletion_time=self.now().wall,
                drain_seconds=int(hook),
                replace_seconds=int(waits),
            )

    def do_disown(self, *names: str) -> None:
        """Somebody takes pods from the job: their owner reference is removed."""
        for name in names:
            self.pods[name] = replace(self.pods[name], of_this_job=False)

    def do_gone(self, *names: str) -> None:
        """Pod objects vanish."""
        for name in names:
            said = kept(self.pods.pop(name))
            if said is not None:
                self.removed[said.uid] = said

    def do_account(self) -> None:
        """The job's service account is deleted and made again."""
        self.account_made = self.api_time()

    def do_others(self, waiting: str) -> None:
        """So many participants of other jobs wait for a round."""
        self.others_waiting = int(waiting)

    def do_renewals(self) -> None:
        """Say how often those who wait are told to renew their Leases, and what they are judged by."""
        told = self.record.wait_renew_period_seconds if self.record else 5
        self.trace.append(f"renewals every {told} s, judged by {self.renewals.seconds} s")

    def do_wait(self, seconds: str) -> None:
        """Time passes; the planner runs whenever it asked to."""
        until = self.mono + float(seconds)
        while not self.stands_still and self.wake_at is not None and self.wake_at <= until:
            self.mono = max(self.mono, self.wake_at)
            self.make_passes()
        self.mono = until

    def do_operator(self, what: str) -> None:
        """``operator restarts``: timers are lost. ``cannot-project``: it dies before each Lease write.
        ``stands-still``: it does nothing until it restarts."""
        if what == "restarts":
            self.timers = {}
            self.removed = {}
            self.lease_writes_fail = self.stands_still = False
        elif what == "stands-still":
            self.stands_still = True
        elif what == "cannot-project":
            self.lease_writes_fail = True
        else:
            raise ValueError(what)

    def do_stale_status(self, rounds_back: str = "1") -> None:
        """The record is ahead of every status that can be read (restored or edited by hand)."""
        assert self.record is not None
        self.record = replace(self.record, number=self.record.number + int(rounds_back))

    def do_record(self, what: str = "", rounds: str = "1") -> None:
        """Say what the round Lease says and what its readers keep; ``deleted`` or ``back`` by hand first."""
        if what == "deleted":
            self.record = None
        elif what == "back":
            self.write_record(self.former[-1 - int(rounds)])
        else:
            kept = name_of(self.reader.latest)
            more = ", and that a container was out of memory" * bool(
                self.record and self.record.out_of_memory
            )
            self.trace.append(f"the round Lease says {name_of(self.record)}{more}, its readers keep {kept}")

    def do_clock(self, seconds: str) -> None:
        """The operator's wall clock jumps."""
        self.wall += float(seconds)

    def do_other_operator(self, what: str, *parts: str, watches: str = "") -> None:
        """``sees [status record pods leases]``: its caches are as of now. ``works``: one pass on them;
        with ``watches=lag`` its watches bring nothing while it does."""
        if self.other is None:
            self.other = OtherOperator(self)
        if what == "sees":
            self.other.see(*parts)
        elif what == "works":
            self.other.work(lagging=watches == "lag")
        else:
            raise ValueError(what)

    def do_orphan(self, uid: str) -> None:
        """The job is deleted with ``--cascade=orphan`` and made again: its former pods run on, nobody's."""
        self.job = replace(self.job, uid=uid, generation=1)
        self.status, self.record = JobStatus(), None
        self.pods = {name: replace(pod, of_this_job=False) for name, pod in self.pods.items()}

    def do_recreate(self, uid: str) -> None:
        """The job is deleted and made again under the same name; its old pods are still there."""
        self.job = replace(self.job, uid=uid, generation=1)
        self.status, self.timers, self.record = JobStatus(), {}, None
        self.pods = {name: replace(pod, of_this_job=False, deleting=True) for name, pod in self.pods.items()}

    def do_status(self) -> None:
        """Say what a person reads now."""
        training = self.status.condition("Training")
        assert training is not None
        self.trace.append(training.message)

    def do_waits(self) -> None:
        """Say what the job waits for, as the operator's ``/waits`` does."""
        names = {pod.uid: pod.name for pod in self.pods.values()}
        self.trace.extend(sentences(self.waits, names) or ["waits for nothing"])

    def do_accounts(self) -> None:
        """Say what is charged to each account that has a charge."""
        used = (f"{a.name} {a.used}" for a in self.status.accounts if a.used)
        self.trace.append(f"charged: {', '.join(used) or 'nothing'}")

    # -- planning ------------------------------------------------------------------------------------------

    def make_passes(self) -> None:
        """The passes that an operator makes after an event: one, and more as it asks for them.

        What it writes itself it knows from the answer, and its watches bring no news of that, but for objects
        that vanish.
        """
        if self.unnoticed:
            self.unnoticed = False
            return
        for _ in range(20):
            if self.stands_still or self.deleted:
                return
            pods, leases, failing_writes = set(self.pods), set(self.leases), self.failing_writes
            self._pass()
            quiet = self.wake_at is None or self.wake_at > self.mono
            if (
                quiet
                and pods <= set(self.pods)
                and leases <= set(self.leases)
                and failing_writes == self.failing_writes
            ):
                return
        raise AssertionError("the planner does not come to rest")

    def now(self) -> Now:
        """The clocks, and fresh randomness. Wall time in whole seconds, as conditions keep it."""
        self.nonces += 1
        return Now(EPOCH + timedelta(seconds=int(self.mono + self.wall)), self.mono, f"nonce-{self.nonces}")

    def api_time(self) -> datetime:
        """The API server's clock, which is right."""
        return EPOCH + timedelta(seconds=int(self.mono))

    def write_status(self, status: JobStatus) -> None:
        """A status write gives the job a new version."""
        if status != self.status:
            self.version += 1
        self.status = status

    def write_record(self, record: RoundRecord) -> None:
        """A write of the round Lease reaches its readers."""
        if not self.former or self.former[-1].order < record.order:
            self.former.append(record)
        before, self.record = self.record, record
        self.reader.observe(record)
        if record.phase == "Active" and (before is None or before.number < record.number):
            self._stand_by(record)

    def _stand_by(self, record: RoundRecord) -> None:
        """A pod that has announced itself for this round, watches, and is no member does so again, for the
        next."""
        members = {m.id for m in self.status.members()}
        for name, lease in self.leases.items():
            r = lease.record
            if r is None or r.state != "Joining" or r.id in members or lease.silent:
                continue
            if r.seen(record.job_uid) == record.number - 1:
                self.ids += 1
                r = replace(r, id=f"id-{self.ids}", seen_job_uid=record.job_uid, seen_round=record.number)
                self.leases[name] = replace(lease, record=r)

    def _pass(self) -> None:
        told = self.renewals.update(self.record.wait_renew_period_seconds if self.record else 5, self.mono)
        observed = Observed(
            tuple(self.pods.values()),
            dict(self.leases),
            self.record,
            self.ready_nodes(),
            self.failing_writes,
            self.others_waiting,
            told,
            account_made=self.account_made,
            domains=self.domains,
            fixed_gang=self.fixed_gang,
            removed=self.removed,
        )
        now, before = self.now(), len(self.trace)
        job = self.job if self.grant is None else granted(self.job, self.grant)
        result = plan(job, self.status, observed, now, self.timers)
        if result.status is not self.status:
            assert result.status == status_json.parse(status_json.dump(result.status)), (
                "status does not survive JSON"
            )
        if "status" in self.refused and result.status != self.status:
            self.timers = {**result.timers, **self.timers}
            result = plan_without_status_write(job, self.status, observed, now, result)
        else:
            self.trace.extend(differences(self.status, result.status))
            self.timers = dict(result.timers)
        self.events.extend(result.events)
        self.waits = result.waits
        self.wake_at = None if result.wake_after is None else self.mono + result.wake_after
        self.write_status(result.status)
        if self.lease_writes_fail:
            return
        if "round" not in self.refused and not ahead(self.record, result.record):
            self.trace.extend(publications(self.record, result.record))
            self.write_record(result.record)
        for action in self._taken(result.actions):
            self.act(action)
        self.trace[before:] = with_events(self.trace[before:], result.events)

    def act(self, action: Action, who: str = "") -> None:
        """Carry out what an operator decided about pods and Leases."""
        if isinstance(action, CreatePod):
            name = action.name
            assert name not in self.pods, f"{name} is made twice"
            uid = f"{self.job.uid}-{name}"
            self.pods[name] = Pod(
                name,
                uid,
                slot=action.slot,
                attempt=action.attempt,
                avoids=action.avoid,
                created=self.api_time(),
                group=self.group_of_new_pod(),
            )
            off = f" off {' '.join(action.avoid)}" if action.avoid else ""
            alone = " in no PodGroup" * (self.fixed_gang is not None and not self.pods[name].group)
            self.trace.append(f"{who}create {name}{off}{alone}")
        elif isinstance(action, DeletePod):
            pod = self.pods[action.name]
            assert pod.uid == action.uid
            how = "delete with force" if action.force else "delete"
            self.trace.append(f"{who}{how} {action.name}: {action.why}")
            if pod.node and not pod.ended and not action.force:
                self.pods[action.name] = replace(pod, deleting=True)
            else:
                del self.pods[action.name]
        elif isinstance(action, PatchPod) and action.condition is not None:
            ready = action.condition.met
            self.trace.append(f"{who}{action.name} is {'ready' if ready else 'not ready any more'}")
            self.pods[action.name] = replace(self.pods[action.name], member_gate=ready)
        elif isinstance(action, PatchPod):
            standby = dict(action.labels)[STANDBY_LABEL] is not None
            self.trace.append(f"{who}{action.name} stands by{'' if standby else ' no more'}")
            pod = self.pods[action.name]
            labels = {**dict(pod.labels), **dict(action.labels)}
            there = tuple((key, value) for key, value in labels.items() if value is not None)
            self.pods[action.name] = replace(pod, labels=there)
        elif isinstance(action, DeleteJob):
            self.trace.append(f"{who}delete the job: {action.why}")
            self.deleted = True
        else:
            self.trace.append(f"{who}delete Lease {action.name}")
            del self.leases[action.name]
