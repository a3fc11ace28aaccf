"""The probes: ``/livez`` says whether a restart could help, ``/readyz`` whether this process could act now.

The kubelet restarts a container that is not alive. So the operator is not alive only in these cases:

* It is blind although the API server responds: a watch has been silent for ``max_silence``, while a list of
  the same resource over a new connection, with fresh credentials, works. While the API server is away, or
  refuses, a restart would not help and would lose a good view.
* A pass over a job or a step of the election hangs, or a task that should never end has ended.
* Its event loop is stuck. Then nothing answers here, and the probe runs into its time limit.

The operator is ready when it has listed everything, has all watches connected, and is alive, whether it leads
or stands by.

``/waits`` says what each job waits for, as of its last pass. It names jobs and pods of all namespaces, so it
answers only from inside the pod, where ``kubectl port-forward`` comes from.

The operator serves the probes itself. kopf has only one endpoint, which starts only when ``startup`` is over
and caches an answer for 10 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.leadership.elector import Elector
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.credentials import Credentials, NoCredentials
from elasticjob_operator.observe.errors import ApiError
from elasticjob_operator.own_thread import in_own_thread
from elasticjob_operator.plan.state.job_waits import sentences
from elasticjob_operator.probe_server import Answer, from_inside, serve
from elasticjob_operator.shared_answer import SharedAnswer

_ASK_SECONDS = 2.5
"""Less than a probe's own time limit."""

_REOPEN_SECONDS = 2.0
"""How long a watch may take to be opened again: the API server ends each after some minutes."""

log = logging.getLogger("elasticjob.operator")


class Health:
    """See the module. A part is None until it has been made."""

    def __init__(self, ask: Callable[[str], Awaitable[bool]] | None = None) -> None:
        self.controller: Controller | None = None
        self.elector: Elector | None = None
        self.election: asyncio.Task[None] | None = None
        self._ask = ask or answers
        self._last_failed_list: dict[str, float] = {}
        """Last failed list for a stale watch, by path: when it was asked for."""
        self._said: dict[str, list[str]] = {}

    async def not_alive(self) -> list[str]:
        """Why this process should be restarted; nothing: it should not."""
        if self.controller is None:
            return []
        problems = [f"the task {name} has ended" for name in self.controller.ended]
        if self.election is not None and self.election.done():
            problems.append("the task for leader election has ended")
        limit = self.controller.settings.max_pass
        if self.elector is not None and self.elector.busy_seconds() > limit:
            problems.append(f"leader election has hung for {self.elector.busy_seconds():.0f} s")
        hung = {who: took for who, took in self.controller.under_way().items() if took > limit}
        problems += [f"reconciliation of {who} has hung for {took:.0f} s" for who, took in hung.items()]
        return problems + await self._blind(self.controller)

    async def not_ready(self) -> list[str]:
        """Why this process could not act now."""
        if self.controller is None:
            return ["starting; the log says what the operator waits for"]
        problems = []
        for informer in self.controller.cache.informers():
            if not informer.synced.is_set():
                problems.append(f"{informer.path} has not been listed yet")
            elif informer.blind_seconds > _REOPEN_SECONDS and not informer.unavailable:
                problems.append(f"the watch of {informer.path} is interrupted")
        return problems + await self.not_alive()

    def report(self) -> dict[str, Any]:
        """What else there is to say, for people."""
        if self.controller is None:
            return {}
        now = self.controller.clock()
        ages = {i.path: round(now - i.last_event_at, 1) for i in self.controller.cache.informers()}
        answer: dict[str, Any] = {
            "heardSeconds": {path: age for path, age in ages.items() if age < float("inf")},
            "loopLagSeconds": round(self.controller.cache.loop_lag, 3),
            "jobs": len(self.controller.registry),
        }
        if self.elector is not None:
            answer["election"] = self.elector.report()
        return answer

    def waits(self) -> list[str]:
        """What the jobs wait for, a line each."""
        if self.controller is None:
            return ["starting; the log says what the operator waits for"]
        election = self.elector.report() if self.elector is not None else {"leading": True}
        if not election["leading"]:
            return [f"this operator stands by; leading: {election['leader'] or 'none'}"]
        lines, now = [], self.controller.clock()
        for entry in self.controller.registry:
            planner, passed = entry.state.planner, now - entry.state.planner.planned_at
            if planner.waits:
                gone = {member.pod_uid: member.pod_name for member in entry.view.status.participants}
                names = gone | self.controller.cache.pod_names(entry.view.job)
                waits = [wait._replace(left=wait.left - passed) for wait in planner.waits]
                lines += [f"{entry.request} {line}" for line in sentences(waits, names)]
        return lines or ["no job waits for anything"]

    async def serve(self, host: str, port: int, others: Mapping[str, Answer] | None = None) -> web.BaseRunner:
        """Answer from now on, and for these others; ``cleanup`` of what is returned ends it."""
        alive, ready = self._judgement("alive", self.not_alive), self._judgement("ready", self.not_ready)
        mine: dict[str, Answer] = {"/livez": alive, "/readyz": ready, "/waits": self._tell_waits}
        return await serve({**mine, **(others or {})}, host, port)

    def _judgement(self, what: str, judge: Callable[[], Awaitable[list[str]]]) -> Answer:
        """It may ask the API server, with a new connection and fresh credentials. Every pod may ask for it:
        so it is made once for all who ask at the same time."""
        shared = SharedAnswer(judge, 0.0)
        return lambda _: self._answer(what, shared.get)

    async def _answer(self, what: str, judge: Callable[[], Awaitable[list[str]]]) -> web.Response:
        problems = await judge()
        if problems != self._said.get(what, []):
            self._said[what] = problems
            level = logging.WARNING if problems else logging.INFO
            log.log(level, "%s", f"not {what}: " + "; ".join(problems) if problems else f"{what} again")
        body = {what: not problems, "problems": problems, **self.report()}
        return web.json_response(body, status=503 if problems else 200)

    async def _tell_waits(self, request: web.BaseRequest) -> web.Response:
        if not from_inside(request.remote or ""):
            return web.Response(status=403, text="only from inside of the pod: use kubectl port-forward\n")
        return web.Response(text="\n".join([*self.waits(), ""]))

    async def _blind(self, controller: Controller) -> list[str]:
        now, limit = controller.clock(), controller.settings.max_silence
        heard = {i.path: i.last_event_at for i in controller.cache.informers() if not i.unavailable}
        heard.update(controller.source.last_event_at())
        since = {p: max(t, controller.started_at, self._last_failed_list.get(p, t)) for p, t in heard.items()}
        silent = [path for path, moment in since.items() if now - moment > limit]
        there = await asyncio.gather(*(self._ask(path) for path in silent))
        self._last_failed_list.update({path: now for path, yes in zip(silent, there, strict=True) if not yes})
        return [
            f"no event on {path} for {now - since[path]:.0f} s, although the API server responds"
            for path, yes in zip(silent, there, strict=True)
            if yes
        ]


async def answers(path: str) -> bool:
    """Whether the API server lists that for a client that has just been made."""
    try:
        client = Client(await in_own_thread(Credentials, "credentials"), timeout=_ASK_SECONDS)
        try:
            await client.get(path, {"limit": "1"})
        finally:
            await client.aclose()
    except (ApiError, NoCredentials, OSError) as error:
        log.debug("the API server does not list %s: %s", path, error)
        return False
    return True
