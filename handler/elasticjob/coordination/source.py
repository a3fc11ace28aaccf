"""The source of round records in a run without operator: it follows the round Lease, and coordinates when its
seat says so."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from elasticjob.api.errors import ApiError, Conflict, Forbidden, NotFound
from elasticjob.api.leases import Lease, read_lease
from elasticjob.api.listing import HttpListApi
from elasticjob.api.retry import pause
from elasticjob.contract import names
from elasticjob.contract.fields import RecordError
from elasticjob.contract.limits import Limits
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.round_record import MemberList, Phase, RoundRecord
from elasticjob.contract.text import counted, one_line
from elasticjob.coordination.directory import NEVER, Directory
from elasticjob.coordination.pods import Pods
from elasticjob.coordination.ports import Ports, refusing
from elasticjob.coordination.reading import LeaseReader, older_than, read_round, round_body
from elasticjob.core.pauses import exponential
from elasticjob.leases.round_source import MAX_SENTENCE, LeaseRoundSource
from elasticjob.peers.records import PeerRecord
from elasticjob.peers.round_lease import Done, Identity, ListAgain, Read, Rest, Step, TryPort, Write
from elasticjob.peers.run import PEER_ANNOTATION, RUN_LABEL, Run, round_lease
from elasticjob.peers.seat import CLOSE_SECONDS, Seat
from elasticjob.peers.sight import Sight

logger = logging.getLogger(__name__)

PAUSE_SECONDS = (0.3, 5.0)
"""After a request that has failed. All participants of a run ask an API server that comes back."""


@dataclass(frozen=True)
class _Failure:
    """The last of ``times`` in a row; ``version`` is that of the round Lease for which it was made."""

    text: str
    version: str
    times: int


class PeerSource:
    """``RoundSource`` of the participant ``me``, whose pod has the index ``slot``."""

    def __init__(
        self,
        run: Run,
        me: Identity,
        slot: int | None,
        limits: Limits,
        open_api: Callable[[], HttpListApi],
        changed: Callable[[RoundRecord], None],
    ) -> None:
        self._run, self._me, self._open_api, self._changed = run, me, open_api, changed
        self._name = round_lease(run.name)
        self.labels: Mapping[str, str] = {RUN_LABEL: run.name}
        peer = PeerRecord(run.id, slot, run.minimum, run.maximum, me.pod)
        self.introduction: Mapping[str, str] = {PEER_ANNOTATION.rpartition("/")[2]: peer.dump()}
        self._api = open_api()
        self._watch = LeaseRoundSource(
            open_api(), self._api, run.name, changed, lease=self._name, seen=self._seen
        )
        turn = random.randrange(run.maximum) if slot is None else slot
        self._seat = Seat(run, me, limits, random.randint(0, 5), turn)
        self._condition = threading.Condition()
        """Held while the seat is asked or hears something; never during a request."""
        self._poked = False
        self._reader = LeaseReader(run.id)
        self._leases: Directory | None = None
        self._pods = Pods(run.name, me, open_api, self._poke)
        self._ports = Ports(self._poke)
        self.auth_errors = self._watch.auth_errors
        """Those of all its requests, by the right that they need."""
        self._failures: dict[str, _Failure] = {}
        """By the right that is needed, until such a request succeeds."""
        self._owned = True
        """Whether the round Lease gets an owner."""
        self._logged = self._warned = ""
        self._bounds_told = False
        self._thread = threading.Thread(target=self._coordinate, name="elasticjob-peers", daemon=True)

    # -- RoundSource ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow, and to coordinate if no other does."""
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        """End. A coordinator that has succeeded waits some seconds for the others, to close the run."""
        with self._condition:
            self._seat.end(time.monotonic())
            self._poke()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS + 2.0)
        self._watch.stop()

    def said(self, annotations: Mapping[str, str | None]) -> None:
        """See ``RoundSource``."""
        with self._condition:
            self._seat.own.take(annotations, time.monotonic())
            self._poke()

    def healthy_seconds(self) -> float:
        """See ``RoundSource``."""
        return self._watch.healthy_seconds()

    def verify(self, since: float) -> None:
        """See ``RoundSource``."""
        self._watch.verify(since)

    def verify_while_waiting(self, now: float, announced: float, renew_seconds: float) -> None:
        """See ``RoundSource``."""
        self._watch.verify_while_waiting(now, announced, renew_seconds)

    def members(self) -> MemberList:
        """The record of a run has all ids. Raises RecordError."""
        raise RecordError("round record: the members' ids are missing")

    @property
    def last_error(self) -> str:
        """The text of the last error; "" while there is none."""
        leases = self._leases
        own = self._failures.get("write") or self._failures.get("read")
        if own is not None:
            return own.text
        return self._watch.last_error or (leases.last_error if leases is not None else "")

    @property
    def obstacle(self) -> str:
        """Another run of this name that is not over."""
        with self._condition:
            other = self._seat.obstacle
            text = other.sentence(self._run.id, self._run.name) if other is not None else ""
            return one_line(text, MAX_SENTENCE)

    # -- what it hears -------------------------------------------------------------------------------------

    def _seen(self, lease: Lease) -> None:
        with self._condition:
            hear = self._seat.hear_deleted if lease.deleted else self._seat.hear
            hear(read_round(lease), time.monotonic())
            self._warn()
            outcome, newest = self._seat.ended_before, self._seat.newest
            self._poke()
        if outcome:
            number = newest.state.number if newest is not None else 0
            text = "another run of this name has followed it"
            self._changed(
                RoundRecord(self._run.id, number, Phase.CLOSED.value, message=text, outcome=outcome)
            )

    def _warn(self) -> None:
        """Say once of each other run that this one waits for it: at once, because it may be a mistake."""
        other = self._seat.obstacle
        if other is not None and other.settled.run != self._warned:
            self._warned = other.settled.run
            logger.warning("waiting: %s", self.obstacle)
        self._warn_of_bounds()

    def _warn_of_bounds(self) -> None:
        """Say once that another pod has decided on the bounds."""
        run, found = self._run, self._seat.newest
        if found is None or (found.minimum, found.maximum) == (run.minimum, run.maximum) or self._bounds_told:
            return
        self._bounds_told = True
        logger.warning(
            "--nnodes is %d:%d here, but run %s began with %d:%d, which counts until it is over: give all of "
            "its pods the same --nnodes",
            *(run.minimum, run.maximum, run.id, found.minimum, found.maximum),
        )

    def _poke(self) -> None:
        with self._condition:
            self._poked = True
            self._condition.notify_all()

    # -- what it does --------------------------------------------------------------------------------------

    def _coordinate(self) -> None:
        crashes = 0
        while True:
            try:
                with self._condition:
                    self._poked = False
                    self._look_around()
                    self._forget_old_write()
                    step = self._seat.step(time.monotonic(), self._sight())
                    self._log()
                if isinstance(step, Done):
                    break
                self._do(step)
                crashes = 0
            except Exception:
                # A thread that ended would leave the run without this participant for ever.
                logger.warning("coordinating failed; retrying", exc_info=True)
                crashes += 1
                time.sleep(exponential(*PAUSE_SECONDS, crashes))
        self._close()

    def _close(self) -> None:
        if self._leases is not None:
            self._leases.stop()
            self._leases = None
        self._pods.rest()

    def _look_around(self) -> None:
        """See what the seat has to see, and no more."""
        seat = self._seat
        looks = seat.needs_sight(time.monotonic())
        if looks and self._leases is None:
            follow = lambda api: api.follow_leases(RUN_LABEL, self._run.name)  # noqa: E731
            self._leases = Directory(self._open_api(), follow, "leases", self._poke, self.auth_errors)
        elif not looks and self._leases is not None and not self._leases.refused:
            self._leases.stop()
            self._leases = None
        if looks:
            self._pods.coordinate()
            return
        self._pods.deputize(seat.deputy_of)
        ended = self._pods.ended_coordinator()
        if ended is not None:
            seat.hear_ended(ended.pod, ended.uid)

    def _forget_old_write(self) -> None:
        """What could not be written is decided on again once the round Lease has changed. Mostly another
        coordinates then, so that it is never tried again."""
        failed = self._failures.get("write")
        if failed is not None and failed.version != self._version():
            del self._failures["write"]
            self.auth_errors.forget("write")

    def _version(self) -> str:
        return self._seat.lease.version if self._seat.lease is not None else ""

    def _sight(self) -> Sight | None:
        directory = self._leases
        leases = directory.objects() if directory is not None else None
        if directory is None or leases is None or not self._pods.ready:
            return None
        now = time.monotonic()
        sight = self._reader.peers(leases, now)
        lease = self._seat.lease if self._seat.unsure else None
        known, shown = leases.get(self._seat.replaced), leases.get(self._name)
        suspected = known is not None and known.changed == NEVER and self._seat.replaced != self._me.pod
        ended = self._pods.gone(leases)
        return replace(
            sight,
            gone={**self._ports.refused(sight, now), **ended},
            live_pods=self._pods.live(),
            failed=directory.failed_seconds(),
            pending=self._pods.pending(),
            finished=frozenset(self._pods.finished() & ended.keys()),
            staying=self._pods.staying(),
            suspects=frozenset({self._seat.replaced} if suspected else ()),
            older=older_than(lease.created, leases) if lease is not None else frozenset(),
            round_age=self._seat.round_age(now),
            round_lease=read_round(read_lease(shown.body)) if shown is not None else None,
        )

    def _do(self, step: Step) -> None:
        if isinstance(step, Rest):
            self._ports.try_these(step.probes)
            with self._condition:
                self._condition.wait_for(lambda: self._poked, step.seconds)
            return
        what = "write" if isinstance(step, Write) else "read"
        try:
            if isinstance(step, Write):
                self._write(step)
            elif isinstance(step, Read):
                self._read()
            elif isinstance(step, ListAgain):
                if self._leases is not None:
                    self._leases.list_again()
            elif isinstance(step, TryPort):
                self._try_port(step.pod)
        except ApiError as error:
            self.auth_errors.record(error, what)
            version = step.version if isinstance(step, Write) else self._version()
            before = self._failures.get(what)
            times = 1 if before is None else before.times + 1
            self._failures[what] = _Failure(str(error), version, times)
            logger.debug("Lease %s: %s", self._name, error)
            wait = pause(*PAUSE_SECONDS, times, error.retry_after)
            with self._condition:
                self._seat.hear_nothing(time.monotonic(), wait)
        else:
            self.auth_errors.record(None, what)
            self._failures.pop(what, None)

    def _write(self, step: Write) -> None:
        """Raises ApiError; a conflict is an answer."""
        try:
            lease = self._create(step) if not step.version else self._patch(step)
        except Conflict:
            with self._condition:
                self._seat.hear_conflict()
            return
        except NotFound:
            if not step.version:
                raise
            with self._condition:
                self._seat.hear_absent(time.monotonic())
            return
        if step.claim:
            logger.info("this pod coordinates the run now: %s", step.claim)
        with self._condition:
            self._seat.hear_written(read_round(lease), step, time.monotonic())
        self._watch.hear(lease)

    def _create(self, step: Write) -> Lease:
        metadata = {"name": self._name, "labels": dict(self.labels)}
        body = round_body(step.settled, step.waiting, str(self._me), step.transitions, metadata)
        return self._api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **body})

    def _patch(self, step: Write) -> Lease:
        # The label, too: without it the Lease is not seen by those that list by it.
        metadata: dict[str, Any] = {
            "resourceVersion": step.precondition,
            "labels": dict(self.labels),
            **names.UNTRACKED,
        }
        holder = "" if step.release else str(self._me)
        body = round_body(step.settled, step.waiting, holder, step.transitions, metadata)
        controller = self._pods.controller(self._run.id)
        with self._condition:
            # What belongs to the Job of the run before goes with it.
            inherited = self._seat.other_run is not None
        if not self._owned or (controller is None and not inherited):
            return self._api.patch(self._name, body)
        owners = [controller] if controller is not None else []
        try:
            return self._api.patch(
                self._name, {**body, "metadata": {**body["metadata"], "ownerReferences": owners}}
            )
        except Forbidden as error:
            self._owned = False
            logger.info(
                "Lease %s gets no owner, so that it stays when its Job is gone: %s", self._name, error
            )
            return self._api.patch(self._name, body)

    def _read(self) -> None:
        try:
            lease = self._api.read(self._name)
        except NotFound:
            with self._condition:
                self._seat.hear_absent(time.monotonic())
            return
        with self._condition:
            self._seat.hear_read(read_round(lease), time.monotonic())
            self._warn()
        # The watch may be late, and the Lease may be deleted before it brings this: then the seat would count
        # on its agent, and the agent would never hear of its round.
        self._watch.hear(lease)

    def _try_port(self, pod: str) -> None:
        """A coordinator whose Lease is gone is gone, as its pod is."""
        try:
            text = self._api.read(pod).annotations.get(names.PARTICIPANT_ANNOTATION, "")
            endpoint = ParticipantRecord.parse(text).endpoint
            refuses = bool(endpoint) and refusing({pod: endpoint}, {})
        except NotFound:
            refuses = True
        except RecordError:
            refuses = False
        with self._condition:
            self._seat.hear_port(pod, refuses, time.monotonic())

    def _log(self) -> None:
        """Say when a round begins and ends, once; it is the coordinator's to say."""
        seat = self._seat
        settled = seat.settled
        if settled is None or not seat.coordinates or not settled.state.number:
            return
        r = settled.state
        text = f"round {r.number} is {r.phase}, {counted(len(r.members), 'member')}" + (
            f": {r.cause}: {settled.message}" if r.cause else ""
        )
        text = one_line(text, MAX_SENTENCE)
        if text != self._logged:
            self._logged = text
            logger.info("%s", text)
