"""Joining: from an announcement until a round has this agent as a member.

Runs in torchrun's main thread, inside ``next_rendezvous``. It waits in Python, so that signal handlers run.
"""

from __future__ import annotations

import logging
import secrets
import time

from torch.distributed.elastic.agent.server.api import ElasticAgent
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from elasticjob.agent import messages
from elasticjob.agent.in_round import InRound
from elasticjob.agent.long_lived_parts import FLUSH_SECONDS, LongLivedParts
from elasticjob.api.errors import Forbidden, Unauthorized
from elasticjob.contract.endpoint import format_endpoint
from elasticjob.contract.reports import FailureReport
from elasticjob.contract.round_record import RUNNING
from elasticjob.core.join_time import JoinTime
from elasticjob.core.participant import AnnounceAgain, Enter, Membership, Stop
from elasticjob.leases.round_source import RoundSource
from elasticjob.leases.writer import LeaseWriter
from elasticjob.warm.newcomer import WARM_SECONDS, has_no_lease, wait_until_warm
from elasticjob.workers import open_files
from elasticjob.workers.failures import oom_kills
from elasticjob.workers.torch_agent import local_world_size

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
"""How long a 401 may last if the kubelet has no reason to replace the token yet, for example because its
service account was made again. A new pod gets a token that is accepted."""
NO_JOB_SECONDS = 10.0
"""How long there may be no round record before the handler asks whether the job exists at all."""
LATE_SECONDS = 120.0
"""A run that is over is closed sooner. Who has followed one for longer has stood by while it trained."""
ALONE_SECONDS = 0.5
"""How long to wait for the next round before the members of the last are looked after."""


class Joining:
    """Announces this agent until a round has it as a member, or there is a reason to give up."""

    def __init__(self, parts: LongLivedParts, rounds: InRound) -> None:
        self._parts = parts
        self._rounds = rounds
        self._first = True

    def wait_for_round(
        self, agent: ElasticAgent | None, limit: JoinTime, failure: FailureReport | None
    ) -> Membership:
        """Announce this agent and wait until a round has it as a member. The report of a ``failure`` in the
        last round goes with the first announcement.

        Raises what ``next_rendezvous`` raises.
        """
        parts = self._parts
        self._hold_back()
        self._announce(agent, failure)
        self._rounds.clear_up()
        began = logged = announced = time.monotonic()
        asked = False
        while True:
            with parts.changed:
                step = parts.core.take_action()
                if not isinstance(step, (Enter, AnnounceAgain, Stop)):
                    self._check(limit, failure)
                    parts.changed.wait(1.0)
            if isinstance(step, Enter):
                self._rounds.forget_last()
                return step.membership
            if isinstance(step, Stop):
                self._stop(step)
            if isinstance(step, AnnounceAgain):
                logger.info("rejoining: %s", step.why)
                self._announce(agent)
                announced = time.monotonic()
                continue
            self._renew_while_waiting()
            now = time.monotonic()
            if now - began > ALONE_SECONDS:
                parts.watch.keep_watching()
            parts.source.verify_while_waiting(now, announced, parts.lease.renew_seconds)
            if parts.core.latest is None and not asked and now - began > NO_JOB_SECONDS:
                asked = True
                self._check_job_exists()
            due = FIRST_LOG_SECONDS if logged == began else LOG_SECONDS
            if now - logged >= due:
                logged = now
                logger.info("%s", self._waiting_text(now - began))

    def _announce(self, agent: ElasticAgent | None, failure: FailureReport | None = None) -> None:
        """Offer a store (any joiner may turn out to lead) and write the participant record with a new id,
        the failure report with it, in one write."""
        parts = self._parts
        for thread in (parts.source, parts.lease):
            thread.auth_errors.forget()  # what was in the last round is not what this wait is judged by
        server = parts.servers.offer()
        local_addr = parts.settings.local_addr
        with parts.changed:
            record = parts.core.announce(
                secrets.token_urlsafe(8),
                format_endpoint(local_addr or "127.0.0.1", server.port),
                bool(local_addr),
                local_world_size(agent),
                open_files.limit(),
                oom_kills() or 0,
            )
        report = {} if failure is None else {"failure": failure.dump()}
        parts.lease.write(participant=record.dump(), **report)
        self._start_source()
        self._renew_while_waiting()

    def _hold_back(self) -> None:
        """A newcomer among others that train waits until its workers can start warm."""
        parts = self._parts
        if self._first and parts.warm is not None:
            self._start_source()
            wait_until_warm(
                parts.core,
                parts.changed,
                parts.warm.warming,
                lambda: has_no_lease(parts.api, parts.settings.pod),
                min(WARM_SECONDS, (parts.settings.join_timeout or float("inf")) / 2),
            )

    def _start_source(self) -> None:
        if self._first:
            self._first = False
            self._parts.source.start()

    def _renew_while_waiting(self) -> None:
        record = self._parts.core.latest
        self._parts.lease.renew_every(float(record.wait_renew_period_seconds) if record is not None else 5.0)

    def _check(self, limit: JoinTime, failure: FailureReport | None) -> None:
        """Raise if there is a reason to give up. The error also has a worker's failure that is unreported."""
        parts = self._parts
        if parts.lease.superseded:
            raise RendezvousStateError(parts.lease.superseded)
        for thread in (parts.source, parts.lease):
            token_limit = REFUSED_SECONDS if thread.auth_errors.lasting else TOKEN_SECONDS
            for kind, allowed, text in (
                (Forbidden, self._forbidden_limit(thread), messages.forbidden),
                (Unauthorized, token_limit, messages.unauthorized),
            ):
                seconds = thread.auth_errors.seconds(kind)
                if seconds > allowed:
                    last_error = parts.source.last_error or parts.lease.last_error
                    what = messages.unreported(failure) if failure is not None else ""
                    raise RendezvousStateError(what + text(parts.settings, last_error, seconds))
        latest = parts.core.latest
        # Without an operator a round that waits is one of which no member is heard: none to stand by for.
        running = latest is not None and latest.phase in RUNNING
        unheard = parts.settings.peers and latest is not None and bool(latest.waiting_message)
        if limit.is_over(time.monotonic(), running and not unheard):
            raise RendezvousTimeoutError(f"no round within {limit.limit:.0f} s; {self._waiting_text(0.0)}")

    def _forbidden_limit(self, thread: RoundSource | LeaseWriter) -> float:
        """How many seconds a 403 may last: many, if the operator may still grant what this pod never had. It
        writes the rights of its own pods again, and a policy that denies them something may change."""
        settings, auth_errors = self._parts.settings, thread.auth_errors
        if settings.peers:
            return RBAC_SECONDS
        if settings.job_uid:
            return GRANT_SECONDS
        final = settings.other_namespace or auth_errors.granted or messages.is_denial(thread.last_error)
        return RBAC_SECONDS if final else GRANT_SECONDS

    def _check_job_exists(self) -> None:
        """There is no record: an absent operator may come, an absent job is a mistake."""
        settings = self._parts.settings
        if not settings.peers and self._parts.api.job_exists(settings.job) is False:
            raise RendezvousStateError(messages.no_job(settings))

    def _waiting_text(self, seconds: float) -> str:
        parts = self._parts
        last_error = parts.lease.last_error or parts.source.last_error
        for thread in (parts.lease, parts.source):
            errors = thread.auth_errors
            if errors.refused(Forbidden) and self._forbidden_limit(thread) > RBAC_SECONDS:
                return messages.not_granted(parts.settings, thread.last_error, errors.seconds(Forbidden))
        if not last_error and parts.source.obstacle:
            return f"waiting: {parts.source.obstacle}"
        return messages.waiting(parts.settings, parts.core.latest, last_error, seconds)

    def _stop(self, stop: Stop) -> None:
        """The job is over: exit quietly if it is complete, otherwise raise the reason."""
        # A former job's completion must not count as this job's success, which exit code 0 would mean.
        parts, announced = self._parts, self._parts.core.announced
        parts.write_leaving()
        parts.lease.flush(FLUSH_SECONDS)
        trained = announced is not None and announced.from_round > 0
        text = messages.over(parts.settings, stop, trained)
        if stop.complete:
            came_late = not trained and parts.source.healthy_seconds() < LATE_SECONDS
            level = logging.WARNING if parts.settings.peers and came_late else logging.INFO
            logger.log(level, "%s", text)
            raise SystemExit(0)
        raise RendezvousClosedError(text)
