"""torch's ``RendezvousHandler`` over the Kubernetes API.

Decisions are made in ``elasticjob.core``. This module starts the threads, and has what torchrun's main thread
calls: ``next_rendezvous`` once for each round, ``num_nodes_waiting`` ten times a second, and ``shutdown``
several times or never. ``SignalException`` is an ``Exception``, so nothing here catches broadly in the main
thread.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import NoReturn

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from elasticjob.agent import messages
from elasticjob.agent.active_round import ActiveRound
from elasticjob.agent.settings import Settings
from elasticjob.agent.torch_version import workers_may_share_agent_store
from elasticjob.api.errors import Forbidden, Unauthorized
from elasticjob.api.leases import LeaseApi
from elasticjob.contract import names
from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS
from elasticjob.contract.reports import DrainReport, FailureReport, RoundReport, StartsReport
from elasticjob.contract.round_record import RoundRecord
from elasticjob.core.participant import RANK_UNKNOWN, AnnounceAgain, Enter, Membership, Participant, Stop
from elasticjob.drain.agreement import Drain
from elasticjob.drain.board import StopBoard
from elasticjob.drain.pre_stop import PodHook
from elasticjob.leases.round_source import LeaseRoundSource, RoundSource
from elasticjob.leases.writer import LeaseWriter
from elasticjob.store.errors import CannotConnect, StoreGone
from elasticjob.store.own_servers import OwnServers
from elasticjob.store.round_store import RoundStore
from elasticjob.store.server import LIBUV_ENV, has_libuv
from elasticjob.warm import early_start
from elasticjob.warm.eligibility import Starts
from elasticjob.warm.newcomer import WARM_SECONDS, has_no_lease, wait_until_warm
from elasticjob.warm.workers import WarmWorkers
from elasticjob.watch.establish import Establishment
from elasticjob.watch.member_watch import MemberWatch
from elasticjob.watch.relay import Relay
from elasticjob.watch.step_files import StepFiles, StepReader
from elasticjob.worker import fenced
from elasticjob.workers import open_files
from elasticjob.workers.failures import RoundWorkers, oom_kills
from elasticjob.workers.leftovers import Ending
from elasticjob.workers.speakers import Speakers, all_say
from elasticjob.workers.stack_dump import FAULTHANDLER_ENV
from elasticjob.workers.terminator import WorkerTerminator
from elasticjob.workers.torch_agent import (
    AgentCall,
    FailedWorker,
    calling_agent,
    final_failures,
    local_world_size,
)

logger = logging.getLogger(__name__)

FIRST_LOG_SECONDS = 5.0
LOG_SECONDS = 30.0
"""How often a waiting participant logs what it waits for."""
GRANT_SECONDS = 600.0
"""How long to wait for the operator to grant a new pod its rights (403)."""
RBAC_SECONDS = 10.0
"""How long a 403 may come from a cache that lags behind, where no operator would change it."""
TOKEN_SECONDS = 150.0
"""How long a 401 may be a token that the kubelet is about to replace: it checks volumes every 60 to 90 s."""
REFUSED_SECONDS = 20.0
"""How long a 401 may last if the kubelet has no reason to replace the token yet: its service account is
another one by now, say. A new pod gets a token that is accepted."""
NO_JOB_SECONDS = 10.0
"""How long there may be no round record before the handler asks whether the job exists at all."""
LINGER_SECONDS = 30.0
FLUSH_SECONDS = 5.0
OUT_OF_MEMORY = "OutOfMemory"
"""The cause of a round that ended because a container's memory was used up."""
ALONE_SECONDS = 0.5
"""How long to wait for the next round before the members of the last are looked after."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class K8sRendezvousHandler(RendezvousHandler):
    """One agent's part in the rounds of one ElasticJob. ``open_api`` gives a fresh ``LeaseApi``; ``ended`` is
    called when it was shut down. ``open_source`` gives the source of round records, which calls its argument;
    by default the round Lease is watched."""

    def __init__(
        self,
        settings: Settings,
        run_id: str,
        open_api: Callable[[], LeaseApi],
        ended: Callable[[], None] = lambda: None,
        open_source: Callable[[Callable[[RoundRecord], None]], RoundSource] | None = None,
    ) -> None:
        self._settings = settings
        self._run_id = run_id
        self._ended = ended
        self._changed = threading.Condition()
        self._core = Participant(settings.job_uid)
        labels = {names.JOB_LABEL: settings.job}
        self._api = open_api()
        self._source: RoundSource = (
            open_source(self._observed)
            if open_source is not None
            else LeaseRoundSource(open_api(), self._api, settings.job, self._observed, self._unpublished)
        )
        self._lease = LeaseWriter(self._api, settings.pod, settings.pod_uid, labels)
        self._servers = OwnServers()
        self._round: ActiveRound | None = None
        self._left_round: ActiveRound | None = None
        self._watch = MemberWatch(self._core, self._lease, self._source.verify)
        self._relay: Relay | None = None
        self._steps = StepFiles()
        self._worker_steps = StepReader("")
        self._agent_call = AgentCall()
        self._warm = WarmWorkers(settings.warm_imports) if settings.warm else None
        self._terminator = WorkerTerminator(self._core, settings.worker_stop, self._round_workers)
        self._ending: Ending | None = None
        if self._warm is not None:
            self._warm.install()
        else:
            early_start.end()
        self._first = True
        self._shut = False

    # -- torch's interface ---------------------------------------------------------------------------------

    def get_backend(self) -> str:
        """The name of the backend."""
        return names.BACKEND

    def get_run_id(self) -> str:
        """The value of ``--rdzv-id``."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether the leader's agent serves a fresh store for the workers of each round.

        On torch 2.4 and 2.5 global rank 0's worker serves it, at a port that the leader's agent keeps for it.
        """
        return workers_may_share_agent_store(str(torch.__version__))

    def is_closed(self) -> bool:
        """Whether the job is over."""
        return isinstance(self._core.next_action(), Stop)

    def set_closed(self) -> None:
        """Only the operator closes a job (I8): nothing happens."""

    def num_nodes_waiting(self) -> int:
        """1 if the record says that this round is over, else 0; reads memory only.

        Waits for the workers' stacks to be written if the round is over because it hung: whenever torch asks,
        all of them live, and it stops them only after this.
        """
        active = self._round
        if active is None:
            return 0
        active.workers.mark_healthy()
        if self._core.end_reason():
            active.workers.mark_stopping()
            with _told("the stacks of the workers are not written"):
                self._terminator.dump()
            with _told("workers that do not stop are not killed"):
                self._terminator.kill_in_time()
            return 1
        return 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and return when all its members are there.

        Raises RendezvousClosedError when the job has failed, SystemExit(0) when it is complete,
        RendezvousStateError when another process of this pod has taken over, rights are missing or it was
        shut down, RendezvousConnectionError if this process can connect to nobody, and RendezvousTimeoutError
        after ``join_timeout``.
        """
        if self._shut:
            raise RendezvousStateError("this handler was shut down and joins no more rounds")
        with self._signals():
            self._agent_call = calling_agent(sys._getframe(1))
            if self._warm is not None:
                _set_worker_environment()
                with _told("the next workers start cold"):
                    self._warm.arm(self._agent_call.agent)
            failure = self._leave_round(self._agent_call.failures)
            deadline = time.monotonic() + (self._settings.join_timeout or float("inf"))
            try:
                while True:
                    membership = self._wait_for_round(deadline, failure)
                    failure = None
                    info = self._establish(membership)
                    if info is not None:
                        return info
            except SignalException:
                self._write_leaving()
                raise

    def shutdown(self) -> bool:
        """Let the others pass the exit barrier, leave; closes nothing, never raises but for a signal."""
        if self._shut:
            return True
        self._shut = True
        active = self._round
        if active is not None and active.store.passed and active.store.group_rank == 0:
            self._linger(active.store)
        failures = final_failures(sys.exc_info()[1])
        if active is not None and failures and (report := active.failure(failures)) is not None:
            self._lease.write(failure=report.dump())
        if active is not None and not active.store.passed:
            self._end_leftovers(active)
        self._lease.flush(FLUSH_SECONDS)
        if self._ending is not None:
            self._ending.join()
        self._stop_threads()
        if self._warm is not None:
            self._warm.close()
        self._servers.close()
        self._steps.remove()
        self._ended()
        return True

    # -- joining -------------------------------------------------------------------------------------------

    def _leave_round(self, failures: Sequence[FailedWorker]) -> FailureReport | None:
        """Put the round before behind us; the report of its workers' failure if any failed by themselves."""
        active, report = self._round, None
        if active is not None:
            report = active.failure(failures)
            end_reason = self._core.end_reason() or ("its store is gone" if report is None else "")
            if end_reason:
                logger.info("round %d is over: %s", active.membership.number, end_reason)
            self._end_leftovers(active)
        self._attach_progress()
        if active is not None:
            self._watch.leave(active.membership)
            if self._relay is not None:
                self._relay.leave(report)
        self._detach_round()
        return report

    def _wait_for_round(self, deadline: float, failure: FailureReport | None) -> Membership:
        """Announce this agent and wait until a round has it as a member."""
        self._hold_back()
        self._announce(failure)
        # What the others do not wait for, while they announce themselves.
        self._close_round()
        self._worker_steps = self._steps.renew()
        began = logged = announced = time.monotonic()
        asked = False
        while True:
            with self._changed:
                step = self._core.take_action()
                if not isinstance(step, (Enter, AnnounceAgain, Stop)):
                    self._check(deadline, failure)
                    self._changed.wait(1.0)
            if isinstance(step, Enter):
                self._watch.stop_post_round_probe()
                self._stop_relay()
                return step.membership
            if isinstance(step, Stop):
                self._stop(step)
            if isinstance(step, AnnounceAgain):
                logger.info("rejoining: %s", step.why)
                self._announce()
                announced = time.monotonic()
                continue
            self._renew_while_waiting()
            now = time.monotonic()
            if now - began > ALONE_SECONDS:
                self._watch.keep_watching()
            self._source.verify_while_waiting(now, announced, self._lease.renew_seconds)
            if self._core.latest is None and not asked and now - began > NO_JOB_SECONDS:
                asked = True
                self._check_job_exists()
            due = FIRST_LOG_SECONDS if logged == began else LOG_SECONDS
            if now - logged >= due:
                logged = now
                logger.info("%s", self._waiting_text(now - began))

    def _announce(self, failure: FailureReport | None = None) -> None:
        """Offer a store (any joiner may turn out to lead) and write the participant record with a new id,
        the failure report with it, in one write."""
        for thread in (self._source, self._lease):
            thread.auth_errors.forget()  # what was in the last round is not what this wait is judged by
        server = self._servers.offer()
        host = self._settings.local_addr or "127.0.0.1"
        with self._changed:
            record = self._core.announce(
                secrets.token_urlsafe(8),
                format_endpoint(host, server.port),
                bool(self._settings.local_addr),
                local_world_size(self._agent_call.agent),
                open_files.limit(),
                oom_kills() or 0,
            )
        if failure is not None:
            self._lease.write(participant=record.dump(), failure=failure.dump())
        else:
            self._lease.write(participant=record.dump())
        self._start_source()
        self._renew_while_waiting()

    def _hold_back(self) -> None:
        """A newcomer among others that train waits until its workers can start warm."""
        if self._first and self._warm is not None:
            self._start_source()
            wait_until_warm(
                self._core,
                self._changed,
                self._warm.warming,
                lambda: has_no_lease(self._api, self._settings.pod),
                min(WARM_SECONDS, (self._settings.join_timeout or float("inf")) / 2),
            )

    def _start_source(self) -> None:
        if self._first:
            self._first = False
            self._source.start()

    def _renew_while_waiting(self) -> None:
        record = self._core.latest
        self._lease.renew_every(float(record.wait_renew_period_seconds) if record is not None else 5.0)

    def _check(self, deadline: float, failure: FailureReport | None) -> None:
        """Reasons to give up waiting. Where the failure of a worker could not be reported, they tell it."""
        if self._lease.superseded:
            raise RendezvousStateError(self._lease.superseded)
        for thread in (self._source, self._lease):
            for kind, limit, text in (
                (Forbidden, self._forbidden_limit(thread), messages.forbidden),
                (
                    Unauthorized,
                    REFUSED_SECONDS if thread.auth_errors.lasting else TOKEN_SECONDS,
                    messages.unauthorized,
                ),
            ):
                seconds = thread.auth_errors.seconds(kind)
                if seconds > limit:
                    last_error = self._source.last_error or self._lease.last_error
                    what = messages.unreported(failure) if failure is not None else ""
                    raise RendezvousStateError(what + text(self._settings, last_error, seconds))
        if time.monotonic() > deadline:
            raise RendezvousTimeoutError(
                f"no round within {self._settings.join_timeout:.0f} s; {self._waiting_text(0.0)}"
            )

    def _forbidden_limit(self, thread: RoundSource | LeaseWriter) -> float:
        """For how long a 403 is waited out: long, if the operator may still grant what this pod never had. It
        writes the rights of its own pods again, and a policy that denies them something may change."""
        if self._settings.job_uid:
            return GRANT_SECONDS
        final = (
            self._settings.other_namespace
            or thread.auth_errors.granted
            or messages.is_denial(thread.last_error)
        )
        return RBAC_SECONDS if final else GRANT_SECONDS

    def _check_job_exists(self) -> None:
        """Without a record: an absent operator may come, an absent job is a mistake."""
        if self._api.job_exists(self._settings.job) is False:
            raise RendezvousStateError(messages.no_job(self._settings))

    def _waiting_text(self, seconds: float) -> str:
        last_error = self._lease.last_error or self._source.last_error
        for thread in (self._lease, self._source):
            forbidden_seconds = thread.auth_errors.seconds(Forbidden)
            if forbidden_seconds > 0 and self._forbidden_limit(thread) > RBAC_SECONDS:
                return messages.not_granted(self._settings, thread.last_error, forbidden_seconds)
        return messages.waiting(self._settings, self._core.latest, last_error, seconds)

    def _stop(self, stop: Stop) -> None:
        """The job is over: leave quietly if it is complete, else say why."""
        # Else exit code 0 would look like a success of this job, if the one that is complete is a former one.
        self._write_leaving()
        self._lease.flush(FLUSH_SECONDS)
        if stop.complete:
            logger.info("the job is complete: %s", stop.message)
            raise SystemExit(0)
        raise RendezvousClosedError(f"the job has failed: {stop.message}")

    # -- in a round ----------------------------------------------------------------------------------------

    def _establish(self, membership: Membership) -> RendezvousInfo | None:
        """Pass the barrier in the leader's store. None: the round was over before; announce again."""
        m = replace(membership, limits=self._settings.limits(membership.limits))
        leads = m.group_rank == 0
        self._lease.renew_every(LEADER_RENEW_SECONDS if leads else MEMBER_RENEW_SECONDS)
        attempt = Establishment(
            m,
            self._servers.enter(leads),
            self._settings.local_addr,
            self._changed,
            self._core.end_reason,
            self._source.healthy_seconds,
            lambda report: self._lease.write(report=report.dump()),
            self.use_agent_store,
            self._source.members,
        )
        try:
            done = attempt.run()
        except CannotConnect as error:
            self._cannot_connect(m, error)
        if done is None and attempt.not_a_member:
            logger.info("round %d was formed without this pod", m.number)
            self._core.drop_membership()
            return None
        if done is None:
            logger.info("round %d ended before it was established: %s", m.number, self._core.end_reason())
            return None
        m = replace(m, group_rank=done.group_rank)
        self._core.set_group_rank(done.group_rank)
        if leads:
            few = open_files.shortfall(m.size, m.size * (local_world_size(self._agent_call.agent) or 1))
            if few:
                logger.warning("%s", few)
        store = RoundStore(
            done.connection,
            leads,
            m.group_rank,
            m.size,
            self._core.end_reason,
            self._succeeded,
            self._core.job_complete,
        )
        steps = self._worker_steps
        workers = RoundWorkers(self._agent_call.agent, steps.folder)
        steps.follow(workers.listed)
        hook = PodHook(os.environ.get(names.POD_UID_ENV, ""))
        count = local_world_size(self._agent_call.agent)
        board = StopBoard(steps.folder, count, hook, workers.listed, workers.has_ended_well)
        fences = Speakers(steps.folder, fenced.SUFFIX, workers.listed)
        drain = Drain(
            m,
            board,
            lambda step: self._stopped(m, step),
            self._core.end_reason,
            lambda step, ranks: self._waits(m, step, ranks),
        )
        active = ActiveRound(m, store, done.connection, workers, drain)
        self._round = active
        if self._core.end_reason():
            active.workers.round_ended()
        os.environ[names.ROUND_ENV] = str(m.number)
        _set_worker_environment()
        if self._warm is not None:
            with _told("later workers start cold"):
                self._warm.begin(
                    lambda: steps.read() is not None,
                    lambda starts: self._started(m.nonce, starts),
                    leads=leads,
                )
        host, _ = parse_endpoint(m.leader_endpoint)
        logger.info(
            "round %d: group rank %d of %d, led by %s%s",
            m.number,
            m.group_rank,
            m.size,
            m.leader_endpoint,
            " (this agent)" * leads,
        )
        # Threads and requests last: whoever starts one waits for it to take the processor.
        self._servers.establish(done.workers_server)
        if leads:
            self._lease.write(report=RoundReport(m.nonce, established=True).dump())
        self._relay = relay = Relay(m, lambda text: self._lease.write(relay=text))
        self._lease.on_trouble = relay.trouble
        relay.begin()
        self._watch.begin(m, steps, lambda: store.passed, board, lambda: all_say(fences, count), self._warm)
        if self._ending is not None:
            self._ending.join()
        return RendezvousInfo(
            store,  # type: ignore[arg-type]  # torch calls methods, it does not look at the type
            m.group_rank,
            m.size,
            RendezvousStoreInfo(host, done.workers_port),
        )

    def _started(self, nonce: str, starts: Starts) -> None:
        """How the workers have started goes with the next write of the Lease."""
        report = StartsReport(nonce, starts.warm, starts.cold, starts.cold_reason, starts.preparing)
        self._lease.attach(starts=report.dump())

    def _stopped(self, m: Membership, step: int) -> None:
        """On the leader: the workers of all members have stopped."""
        if not self._core.end_reason():
            self._watch.attach_progress()
            self._lease.write(drain=DrainReport(m.nonce, True, step).dump())

    def _waits(self, m: Membership, step: int, ranks: tuple[int, ...]) -> None:
        """On the leader: the round drains, and the workers of these members have not stopped."""
        if not self._core.end_reason():
            self._lease.write(drain=DrainReport(m.nonce, step=step, waiting_ranks=ranks).dump())

    def _cannot_connect(self, m: Membership, error: CannotConnect) -> NoReturn:
        """Say that this pod has failed, and why: it is no peer's fault, nor that of a node."""
        text = f"torchrun cannot connect to the leader {m.leader_endpoint}: {error}"
        report = FailureReport(m.number, 0 if m.group_rank == RANK_UNKNOWN else m.group_rank, text)
        self._lease.write(failure=report.dump())
        self._lease.flush(FLUSH_SECONDS)
        raise RendezvousConnectionError(f"round {m.number}: {text}") from error

    def _succeeded(self) -> None:
        """torch enters its exit barrier: the local workers have finished well."""
        if self._round is not None:
            self._round.workers.mark_succeeded()
        with self._changed:
            m = self._core.membership
            record = None if self._core.end_reason() else self._core.succeeded()
        if record is not None and m is not None:
            logger.info("all local workers have succeeded")
            self._attach_progress()
            self._lease.write(participant=record.dump(), finished=m.nonce)

    def _attach_progress(self) -> None:
        with _told("how far training has come is not told"):
            self._watch.attach_progress()

    def _linger(self, store: RoundStore) -> None:
        """The leader's server stays until all members have passed the exit barrier."""
        deadline = time.monotonic() + LINGER_SECONDS
        try:
            while not store.all_passed() and time.monotonic() < deadline:
                with self._changed:
                    self._changed.wait(0.05)
        except StoreGone:
            pass

    # -- threads and signals -------------------------------------------------------------------------------

    def _observed(self, record: RoundRecord) -> None:
        """From the watcher's thread: a record of the round."""
        with self._changed:
            if not self._core.observe(record):
                return
            active, over = self._round, bool(self._core.end_reason())
            out_of_memory = record.out_of_memory or record.cause == OUT_OF_MEMORY
            drains, replaces = self._core.drain_asked(), self._core.replaces()
            self._changed.notify_all()
        if out_of_memory and self._warm is not None:
            with _told("later workers may start warm"):
                self._warm.out_of_memory("a container of this job")
        if active is not None and drains:
            with _told("the round does not drain here"):
                active.drain.start()
        if active is not None and not over:
            active.drain.replacing(replaces)
        if active is not None and over:
            active.workers.round_ended()
            with _told("the stacks of the workers may be missing"):
                self._terminator.freeze()
            with _told("workers that do not stop may not be killed"):
                self._terminator.kill_in_time()

    def _unpublished(self) -> None:
        """From the watcher's thread: the record was deleted, most likely with its job."""
        with self._changed:
            self._core.unpublish()
            active = self._round
        if active is not None:
            active.drain.replacing(False)

    def _detach_round(self) -> None:
        """The agent is in no round: a guard that fires later kills nothing from now on."""
        self._close_round()
        self._left_round, self._round = self._round, None
        self._watch.stop_heartbeats()

    def _close_round(self) -> None:
        """Close what was detached."""
        left, self._left_round = self._left_round, None
        if left is not None:
            left.close()

    def _end_leftovers(self, active: ActiveRound) -> None:
        """What the round's workers have left behind is no more when the next ones start."""
        spared = self._warm.idle_pids() if self._warm is not None else frozenset()
        self._ending = active.workers.end_leftovers(active.membership.number, spared)

    def _round_workers(self) -> RoundWorkers | None:
        active = self._round
        return active.workers if active is not None else None

    def _stop_relay(self) -> None:
        """What was passed on is of the round before."""
        relay, self._relay = self._relay, None
        if relay is not None and relay.stop():
            self._lease.attach(relay=None)

    def _stop_threads(self) -> None:
        self._watch.stop_post_round_probe()
        self._stop_relay()
        self._detach_round()
        self._close_round()
        self._source.stop()
        self._lease.stop()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signal handlers of our own where torch has none yet (it installs its own with the first workers).

        As PID 1 a process without a handler never sees SIGTERM at all.
        """
        previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                current = signal.getsignal(number)
                if current in (signal.SIG_DFL, signal.default_int_handler):
                    previous[number] = signal.signal(number, self._terminate)
        try:
            yield
        finally:
            for number, old in previous.items():
                signal.signal(number, old)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._write_leaving()
        raise SystemExit(128 + number)

    def _write_leaving(self) -> None:
        record = self._core.leaving()
        if record is not None:
            self._lease.write(participant=record.dump())
            self._lease.flush(1.0)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What a helper raises is told, and goes no further: training and rounds do without it."""
    try:
        yield
    except SignalException:
        raise
    except Exception:
        logger.warning("%s", what, exc_info=True)


def _set_worker_environment() -> None:
    """What workers inherit in every round."""
    os.environ.setdefault(FAULTHANDLER_ENV, "1")
    if not has_libuv():
        os.environ[LIBUV_ENV] = "0"  # else the workers' stores fail, too
