"""One participant as a coroutine: the handler's protocol, without the handler's threads and process.

Decisions and records are the handler's own (`elasticjob.core.participant`, `elasticjob.contract`), and so are
the requests: a watch of the round Lease and the writes of the own Lease, each on a TLS connection of its own
that no other participant shares. A leader serves a real TCPStore and establishes the round by the handler's
own code (`elasticjob.watch.establish`), in a thread; a member passes the barrier by the same operations over
a client of the same wire protocol (`benchmarks.store_client`).

What differs from a real agent: TLS settings, one event loop and one interpreter are shared by thousands; a
participant listens on the port that it offers, but a TCPStore is put behind it only when it leads (a real
handler starts one with each announcement, 1 ms each); there are no heartbeats; a record whose text a
neighbour has just parsed is not parsed again (every machine does that for itself, at the same time).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from benchmarks.api_client import ApiClient, Refused
from benchmarks.own_lease import OwnLease
from benchmarks.store_client import StoreClient, StoreError
from benchmarks.swarm_messages import SWARM_AGENT, Passed, SwarmSeat
from elasticjob.api.errors import Unavailable
from elasticjob.api.leases import SILENT_WATCH_SECONDS, WATCH_SECONDS
from elasticjob.contract import names
from elasticjob.contract.endpoint import format_endpoint, parse_endpoint
from elasticjob.contract.fields import RecordError
from elasticjob.contract.participant_record import LEADER_RENEW_SECONDS, MEMBER_RENEW_SECONDS
from elasticjob.contract.reports import FailureReport, ProgressReport, RoundReport
from elasticjob.contract.round_record import MemberList, RoundRecord
from elasticjob.core.participant import RANK_UNKNOWN, AnnounceAgain, Enter, Membership, Participant, Stop
from elasticjob.core.renewal_schedule import RenewalSchedule

HOST = "127.0.0.1"
ANSWER_SECONDS = 60.0
"""The handler waits less. Here thousands of handshakes share two cores: a limit would measure the limit."""
RETRY_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0
STORE_CONNECT_SECONDS = 30.0


@functools.lru_cache(maxsize=4)
def _parse(text: str) -> RoundRecord:
    return RoundRecord.parse(text)


class SwarmParticipant:
    """See the module. `call` is `next_rendezvous`; the rest runs behind it, as in the handler."""

    def __init__(self, seat: SwarmSeat, tls: ssl.SSLContext) -> None:
        self._seat = seat
        self._core = Participant()
        self._news = asyncio.Event()
        self._changed = threading.Condition()
        # As in the handler the watch holds one connection, and everything else shares another.
        self._api = ApiClient(
            seat.server, tls, seat.token, SWARM_AGENT, connections=2, answer_seconds=ANSWER_SECONDS
        )
        self._own = OwnLease(seat.namespace, seat.job, seat.pod, seat.uid)
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{seat.namespace}/leases"
        self._annotations: dict[str, str] = {}
        self._requested = self._written = 0
        self._written_at = 0.0
        self._wanted = asyncio.Event()
        self._renewals = RenewalSchedule(
            MEMBER_RENEW_SECONDS, time.monotonic(), lambda: random.uniform(0.9, 1.1)
        )
        self._listening: socket.socket | None = None
        self._servers: list[object] = []
        self._store: StoreClient | None = None
        self._healthy_since: float | None = None
        self._in_round = False
        self._tasks: list[asyncio.Task[None]] = []
        self.refused = 0

    async def call(self) -> Passed:
        """`next_rendezvous`: join, and return when the round is established. Raises RuntimeError if the job
        is over."""
        called = time.monotonic()
        await asyncio.sleep(0)  # the neighbours' calls come first, so that all have called at one moment
        failure = self._leave_round()
        while True:
            membership = await self._wait_for_round(failure)
            failure = None
            seen = time.monotonic()
            m = await self._establish(membership)
            if m is not None:
                break
        self._in_round = True
        return Passed(
            called,
            self._written_at,
            seen,
            time.monotonic(),
            m.group_rank,
            m.size,
            m.number,
            m.leader_endpoint,
        )

    def traffic(self) -> tuple[int, int]:
        """Bytes sent to and received from the API server so far, TLS included."""
        return self._api.count()

    # -- joining -------------------------------------------------------------------------------------------

    def _leave_round(self) -> FailureReport | None:
        m = self._core.membership
        failed = self._in_round and m is not None and not self._core.end_reason()
        self._in_round = False
        self._drop_store()
        return (
            FailureReport(m.number, m.group_rank, "exit code unknown") if failed and m is not None else None
        )

    async def _wait_for_round(self, failure: FailureReport | None) -> Membership:
        self._announce(failure)
        while True:
            self._news.clear()
            step = self._core.next_action()
            if isinstance(step, Enter):
                return step.membership
            if isinstance(step, Stop):
                raise RuntimeError(f"the job is over: {step.message}")
            if isinstance(step, AnnounceAgain):
                self._announce(None)
                continue
            self._renew_while_waiting()
            await self._news.wait()

    def _announce(self, failure: FailureReport | None) -> None:
        if self._listening is not None:
            self._listening.close()
        self._listening = socket.create_server((HOST, 0), backlog=4096)
        endpoint = format_endpoint(HOST, self._listening.getsockname()[1])
        record = self._core.announce(secrets.token_urlsafe(8), endpoint, False, 1)
        annotations = {names.PARTICIPANT_ANNOTATION: record.dump()}
        if failure is not None:
            annotations[names.FAILURE_ANNOTATION] = failure.dump()
        self._request_write(**annotations)
        self._renew_while_waiting()
        if not self._tasks:
            self._tasks = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._watch())]

    def _renew_while_waiting(self) -> None:
        record = self._core.latest
        self._renew_every(float(record.wait_renew_period_seconds) if record is not None else 5.0)

    # -- in a round ----------------------------------------------------------------------------------------

    async def _establish(self, m: Membership) -> Membership | None:
        """Pass the barrier; the place that this participant has. None: the round was over before, or it has
        none."""
        self._renew_every(LEADER_RENEW_SECONDS if m.group_rank == 0 else MEMBER_RENEW_SECONDS)
        if m.group_rank == 0:
            return await self._lead(m)
        arrive = asyncio.ensure_future(self._arrive(m))
        over = asyncio.ensure_future(self._until_over())
        try:
            late = m.limits.establish_timeout
            done, _ = await asyncio.wait({arrive, over}, timeout=late, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                report = RoundReport(m.nonce, leader_lost=True, message=f"no answer within {late} s")
                self._request_write(**{names.REPORT_ANNOTATION: report.dump()})
                await asyncio.wait({arrive, over}, return_when=asyncio.FIRST_COMPLETED)
            return arrive.result() if arrive.done() else None
        finally:
            for task in (arrive, over):
                task.cancel()
            await asyncio.gather(arrive, over, return_exceptions=True)

    async def _until_over(self) -> None:
        while not self._core.end_reason():
            self._news.clear()
            await self._news.wait()

    async def _arrive(self, m: Membership) -> Membership | None:
        """What `Establishment._arrive` does on a member, and again as long as it can't be done."""
        from elasticjob.watch.establish import (
            ALL_ARRIVED_KEY,
            COUNT_KEY,
            NOT_A_MEMBER,
            RANK_KEY,
            RANKS_KEY,
            WORKERS_PORT_KEY,
        )
        from elasticjob.watch.heartbeats import ENDPOINT_KEY

        host, port = parse_endpoint(m.leader_endpoint)
        while True:
            try:
                self._drop_store()
                store = await StoreClient.connect(host, port, m.prefix, STORE_CONNECT_SECONDS)
                self._store = store
                if m.group_rank == RANK_UNKNOWN:
                    await store.wait(RANKS_KEY)
                    answer = (
                        await store.compare_set(f"{RANK_KEY}{m.id}", NOT_A_MEMBER, NOT_A_MEMBER)
                    ).decode()
                    if answer == NOT_A_MEMBER:
                        self._core.drop_membership()
                        return None
                    m = replace(m, group_rank=int(answer))
                    self._core.set_group_rank(m.group_rank)
                own_port = self._listening.getsockname()[1] if self._listening is not None else 0
                store.set(f"{ENDPOINT_KEY}{m.group_rank}", format_endpoint(HOST, own_port))
                if await store.add(COUNT_KEY, 1) == m.size:
                    store.set(ALL_ARRIVED_KEY, "1")
                await store.wait(ALL_ARRIVED_KEY)
                int(await store.get(WORKERS_PORT_KEY))
            except (OSError, StoreError):
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return m

    async def _lead(self, m: Membership) -> Membership | None:
        from torch.distributed import TCPStore

        from elasticjob.store.server import Server
        from elasticjob.watch.establish import AgentContext, Establishment

        loop = asyncio.get_running_loop()
        listening = self._listening
        assert listening is not None
        self._listening = None
        port = listening.getsockname()[1]

        def report(found: RoundReport) -> None:
            loop.call_soon_threadsafe(
                functools.partial(self._request_write, **{names.REPORT_ANNOTATION: found.dump()})
            )

        def lead() -> bool:
            server = Server(
                TCPStore(
                    HOST,
                    port,
                    is_master=True,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=300),
                    master_listen_fd=listening.detach(),
                )
            )
            self._servers = [*self._servers[-1:], server]
            attempt = Establishment(
                m,
                server,
                AgentContext(
                    changed=self._changed,
                    end_reason=self._core.end_reason,
                    healthy_seconds=self._healthy_seconds,
                    report=report,
                    list_members=lambda: asyncio.run_coroutine_threadsafe(self._list(), loop).result(),
                ),
            )
            done = attempt.run()
            if done is None:
                return False
            done.connection.close()
            if done.workers_server is not None:
                self._servers.append(done.workers_server)
            return True

        established = await asyncio.to_thread(lead)
        if established:
            met = RoundReport(m.nonce, established=True).dump()
            step = ProgressReport(m.nonce, m.number, m.number, 0, 0).dump()  # rounds without one are paced
            self._request_write(**{names.REPORT_ANNOTATION: met, names.PROGRESS_ANNOTATION: step})
        return m if established else None

    async def _list(self) -> MemberList:
        """The member list, as the handler reads it."""
        try:
            answer = await self._api.request("GET", f"{self._leases}/{names.members_lease(self._seat.job)}")
        except Refused as error:
            raise Unavailable(str(error)) from None
        return MemberList.parse(
            (answer["metadata"].get("annotations") or {}).get(names.MEMBERS_ANNOTATION, "")
        )

    def _healthy_seconds(self) -> float:
        return 0.0 if self._healthy_since is None else time.monotonic() - self._healthy_since

    def _drop_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    # -- the API server ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        name = names.round_lease(self._seat.job)
        query = (
            f"?watch=1&allowWatchBookmarks=true&timeoutSeconds={random.randint(*WATCH_SECONDS)}"
            f"&fieldSelector=metadata.name%3D{name}"
        )

        async def once() -> None:
            async with self._api.watch(self._leases + query, SILENT_WATCH_SECONDS) as events:
                self._healthy_since = self._healthy_since or time.monotonic()
                async for event in events:
                    self._event(event)

        while True:
            await self._persist(once)

    def _event(self, event: Any) -> None:
        if event["type"] == "ERROR":
            raise Refused(str(event["object"].get("message")))
        if event["type"] not in ("ADDED", "MODIFIED"):
            return
        text = (event["object"]["metadata"].get("annotations") or {}).get(names.ROUND_ANNOTATION, "")
        with contextlib.suppress(RecordError):
            if text and self._core.observe(_parse(text)):
                self._news.set()
                with self._changed:
                    self._changed.notify_all()

    def _request_write(self, **annotations: str) -> None:
        self._annotations.update(annotations)
        self._requested += 1
        self._wanted.set()

    def _renew_every(self, seconds: float) -> None:
        if self._renewals.every(seconds, time.monotonic()):
            self._wanted.set()

    async def _write(self) -> None:
        """What `LeaseWriter` does: write what was said, several sayings at once, and renew."""
        while True:
            self._renewals.begin(time.monotonic())
            while self._requested == self._written and (left := self._renewals.due - time.monotonic()) > 0:
                self._wanted.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._wanted.wait()
            upto = self._requested
            await self._persist(self._write_once)
            if upto != self._written:
                self._written, self._written_at = upto, time.monotonic()

    async def _write_once(self) -> None:
        self._own.written(await self._api.request("PATCH", *self._own.write(self._annotations)))

    async def _persist(self, once: Callable[[], Awaitable[None]]) -> None:
        """Try until it works, with the handler's pauses."""
        pause = RETRY_SECONDS
        while True:
            try:
                await once()
            except Refused as error:
                self.refused += 1
                await asyncio.sleep(max(pause, error.retry_after) * random.uniform(0.8, 1.2))
                pause = min(MAX_PAUSE_SECONDS, pause * 2)
            else:
                return
