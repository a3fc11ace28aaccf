"""The phases of `benchmarks.jobs` at one number of jobs, and what is measured in each.

Times are seconds from what a node or a participant has written to what the API server's watches bring to this
process: its own part (parsing, its event loop) counts. Beside each phase stands the machine's load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.jobs_hostile import HostileTenant, Leadership
from benchmarks.jobs_nodes import Key, Nodes, SeenJob
from benchmarks.jobs_operator import Clocks
from benchmarks.jobs_operators import Operator, Samples, operator_requests, writes_to_what_is_gone
from benchmarks.k8s import NODE, ControlPlane
from devcluster.api import ApiClient
from devcluster.ports import PortClaims
from elasticjob.contract import names

PHASES = ("start", "steady", "loss", "storm", "restart", "takeover", "deletion")
HOSTILE = "hostile"
"""The phase that runs only on request."""
STORM = 50
_SAY_SECONDS = 10.0
_PAUSE_SECONDS = 0.3
_AGAIN_SECONDS = 60.0
"""The least time between two losses of a job: earlier, it would wait for its pause."""
_ROUND_SECONDS = 120.0
_LIMIT_SECONDS = 900.0
"""For the start, and for the deletion."""
_SETTLE_SECONDS = 190.0
"""How long to wait after the deletion: within this time the operator gives memory back."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """``window``: seconds of the steady state; ``losses``: one after the other."""

    jobs: int
    pods: int
    namespaces: int
    window: float
    losses: int
    phases: Sequence[str] = PHASES
    hostile: float = 600.0
    """Seconds."""


class Missed(Exception):
    """An event did not come within its time."""


class Run:
    """One control plane, and all phases."""

    def __init__(self, plane: ControlPlane, nodes: Nodes, options: Options, folder: Path) -> None:
        self.plane, self.nodes, self.options = plane, nodes, options
        self._folder = folder
        self._operators = 0
        self._ports = PortClaims()
        self._urls: list[str] = []
        self.operator = self.begin_operator()
        self.samples = Samples(plane, self.operator)
        self.figures: dict[str, Figures] = {}
        spaces = namespaces(options.namespaces)
        self.keys = [(spaces[number % len(spaces)], f"job-{number}") for number in range(options.jobs)]
        # A second loss soon after the first is followed by a pause: each job has one, where there are enough.
        last = random.sample(self.keys, len(self.keys))
        alone = min(options.losses, max(1, (len(last) - 2) // 2))
        self._lost = {"loss": last[:alone], "storm": last[alone:-2][:STORM] or last[:1]}
        self._lost |= {"restart": last[-1:], "takeover": last[-2:][:1]}

    def begin_operator(self) -> Operator:
        """Another operator. It leads when no other does."""
        self._operators += 1
        flags: list[str] = []
        if HOSTILE in self.options.phases:
            address = f"127.0.0.1:{self._ports.take()}"
            flags = [f"--health-probe-bind-address={address}"]
            self._urls.append(f"http://{address}")
        return Operator(self.plane, self._folder, self._operators, flags)

    async def run(self) -> dict[str, Figures]:
        """All phases, one after the other; what could not be measured says why."""
        sampling = asyncio.create_task(self.samples.run())
        try:
            await self.operator.leads()
            await asyncio.sleep(2.0)
            self._idle = self.samples.take().operator_mebibytes
            for phase in self.options.phases:
                say(f"{self.options.jobs} jobs: {phase}")
                try:
                    await getattr(self, f"_{phase}")()
                except (Missed, TimeoutError) as error:
                    self.figures.setdefault(phase, {})["missed"] = str(error) or "not in time"
                    say(f"{phase}: {error}")
                    if phase == "start":
                        break
        finally:
            sampling.cancel()
            self.operator.kill()
            self._ports.release()
        return self.figures

    @asynccontextmanager
    async def _measured(self, phase: str) -> AsyncIterator[Figures]:
        """The figures of every phase, with the machine's load."""
        figures = self.figures[phase] = {}
        offset = self.plane.audit_log.stat().st_size
        before = self.samples.take()
        psutil.cpu_percent()
        yield figures
        after = self.samples.take()
        clocks = await self.operator.clocks()
        seconds = after.at - before.at
        used = after.operator_cpu - (
            before.operator_cpu if after.operator_cpu >= before.operator_cpu else 0.0
        )
        pauses = [pause for pause in clocks.pauses if pause.at >= before.at]
        lags = [lag for lag in clocks.lags if lag.at >= before.at]
        passes = [one for one in clocks.passes if one.at >= before.at]
        requests = operator_requests(self.plane, offset)
        figures |= {
            "seconds measured": round(seconds, 1),
            "operator CPU s": round(used, 2),
            "operator's share of a core, %": round(100 * used / seconds, 1),
            "operator MiB, highest so far": round(self.samples.highest()),
            "collections": len(pauses),
            "longest collection, ms": longest([pause.seconds for pause in pauses]),
            "longest collection, CPU ms": longest([pause.cpu for pause in pauses]),
            "all collections, CPU s": round(sum(pause.cpu for pause in pauses), 2),
            "passes": len(passes),
            "plan CPU ms, p50 and p99": quantiles([1000 * one.plan_cpu for one in passes]),
            "event loop late, longest ms": longest([lag.seconds for lag in lags]),
            "most CPU ms while it was late": longest([lag.cpu for lag in lags]),
            "operator's requests": dict(requests.most_common()),
            "API server's share of a core, %": round(
                100 * (after.apiserver_cpu - before.apiserver_cpu) / seconds
            ),
            "machine's load": round(os.getloadavg()[0], 2),
            "others' share of a core, %": round(
                100 * (after.machine_cpu - before.machine_cpu - (after.ours_cpu - before.ours_cpu)) / seconds
            )
            if after.ours_cpu >= before.ours_cpu
            else None,
        }

    async def _start(self) -> None:
        nodes, options = self.nodes, self.options
        async with self._measured("start") as figures:
            began = said = time.monotonic()
            await asyncio.gather(*(self._apply(key) for key in self.keys))
            figures["applied after, s"] = round(time.monotonic() - began, 1)
            while (left := sum(nodes.job(key).trains_after is None for key in self.keys)) and (
                time.monotonic() - began < _LIMIT_SECONDS
            ):
                await asyncio.sleep(0.1)
                nodes.check()
                if time.monotonic() - said > _SAY_SECONDS:
                    said = time.monotonic()
                    say(f"  {said - began:.0f} s: {options.jobs - left} of {options.jobs} train")
            times = sorted(nodes.job(key).trains_after or _LIMIT_SECONDS for key in self.keys)
            figures["first, median, last trains after, s"] = [
                round(times[at], 1) for at in (0, len(times) // 2, -1)
            ]
            await asyncio.sleep(2.0)  # their last Events
        requests = figures["operator's requests"]
        beside = sum(
            n for what, n in requests.items() if not what.startswith(("create pods", "list", "watch"))
        )
        figures["requests per job beside its pods"] = round(beside / options.jobs, 1)
        figures["pods replaced"] = sum(max(0, len(job.pods) - options.pods) for job in nodes.jobs.values())
        if left:
            raise Missed(f"{left} of {options.jobs} jobs do not train after {_LIMIT_SECONDS:.0f} s")

    async def _apply(self, key: Key) -> None:
        namespace, name = key
        self.nodes.job(key)
        container = {"name": "train", "image": "played", "command": ["torchrun", "train.py"]}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "replicas": self.options.pods,
                "handlerSource": "Image",
                "failurePolicy": {"application": {}, "infrastructure": {}},
                "template": {"spec": {"nodeName": NODE, "containers": [container]}},
            },
        }
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
        assert await self.nodes.persist("apply", "POST", path, body, "application/json"), name

    async def _steady(self) -> None:
        await asyncio.sleep(5.0)
        async with self._measured("steady") as figures:
            before = sum(self.nodes.counts[what] for what in ("say", "renew"))
            await asyncio.sleep(self.options.window)
            theirs = sum(self.nodes.counts[what] for what in ("say", "renew")) - before
        seconds = figures["seconds measured"]
        ours = sum(figures["operator's requests"].values())
        figures["requests per second and job"] = round((theirs + ours) / seconds / self.options.jobs, 3)
        figures["of these the operator's"] = round(ours / seconds / self.options.jobs, 4)

    async def _loss(self) -> None:
        async with self._measured("loss") as figures:
            began = time.monotonic()
            losses = []
            for key in self._lost["loss"]:
                losses.append(await self._lose_one(self.nodes.job(key)))
                await asyncio.sleep(_PAUSE_SECONDS)
        figures |= {
            "losses": len(losses),
            "loss to its record, ms, p50 and p99": quantiles([1000 * one.broken for one in losses]),
            "last join to the next round, ms, p50 and p99": quantiles([1000 * one.formed for one in losses]),
            "operator's own part, ms, p50 and p99": own_parts(await self.operator.clocks(), began),
        }

    async def _storm(self) -> None:
        await asyncio.sleep(3.0)
        jobs = [self.nodes.job(key) for key in self._lost["storm"]]
        async with self._measured("storm") as figures:
            began = time.monotonic()
            losses = await asyncio.gather(*(self._lose_one(job) for job in jobs))
            figures["jobs that lose a member"] = len(jobs)
            figures["all established again, s"] = round(time.monotonic() - began, 2)
        figures["all records said so after, s"] = round(max(one.broken for one in losses), 2)
        figures["operator's own part, ms, p50 and p99"] = own_parts(await self.operator.clocks(), began)

    async def _hostile(self) -> None:
        """One tenant does all that it can to the leading operator and to one that stands by."""
        other = self.begin_operator()
        leadership = Leadership(self.plane)
        looking = asyncio.create_task(leadership.run())
        log = self._folder / "tenant.log"
        tenant: HostileTenant | None = None
        try:
            await other.listens()
            await asyncio.sleep(3.0)
            async with self._measured(HOSTILE) as figures:
                began = time.monotonic()
                tenant = await asyncio.to_thread(
                    HostileTenant, self.plane, self._urls[-2:], self.options.hostile, log
                )
                broken, missed = await self._lose_while(tenant)
            figures["what the tenant did"] = done = await tenant.done()
        finally:
            looking.cancel()
            other.kill()
            if tenant is not None:
                tenant.kill()
        figures |= {
            "losses": len(broken),
            "losses without a record": missed,
            "loss to its record, ms, p50 and p99": quantiles([1000 * one for one in broken]),
            "operator's own part, ms, p50 and p99": own_parts(await self.operator.clocks(), began),
            "changes of leader": len(leadership.holders) - 1,
            "longest between two renewals, s": round(leadership.longest_gap, 2),
            "probe of the leader, ms": await self._probed(self._urls[-2]),
        }
        if not any(what.startswith("changes") for what in done):
            raise Missed(f"the tenant had no time for all that it does: {done}; give it more with --hostile")

    async def _lose_while(self, tenant: HostileTenant) -> tuple[list[float], int]:
        """Lose members of healthy jobs until it has ended. A job's next loss comes after all others had one,
        so that none waits for a pause after a failure."""
        broken, missed = [], 0
        keys = [key for key in self.keys if key not in {*self._lost["restart"], *self._lost["takeover"]}]
        while not tenant.has_ended():
            for key in random.sample(keys, len(keys)):
                if tenant.has_ended():
                    break
                try:
                    broken.append((await self._lose_one(self.nodes.job(key))).broken)
                except (Missed, TimeoutError):
                    missed += 1
                await asyncio.sleep(max(_PAUSE_SECONDS, _AGAIN_SECONDS / len(keys)))
        return broken, missed

    async def _probed(self, url: str) -> float:
        began = time.monotonic()
        answer = await asyncio.to_thread(ApiClient(url).request, "GET", "/livez", timeout=10.0)
        if not answer.ok:
            raise Missed(f"the leader is not alive: {answer.text}")
        return round(1000 * (time.monotonic() - began), 1)

    async def _restart(self) -> None:
        await asyncio.sleep(3.0)
        async with self._measured("restart") as figures:
            self.operator.kill()
            await self._acts("restart", figures, self.begin_operator())

    async def _takeover(self) -> None:
        other = self.begin_operator()
        await other.listens()
        await asyncio.sleep(3.0)
        async with self._measured("takeover") as figures:
            self.operator.kill()
            await self._acts("takeover", figures, other)

    async def _acts(self, phase: str, figures: Figures, operator: Operator) -> None:
        """A member is lost while no operator leads; this one will."""
        self.operator = self.samples.operator = operator
        loss = await self._lose_one(self.nodes.job(self._lost[phase][0]))
        clocks = await operator.clocks()
        figures["leading after, s"] = round(clocks.leading_at - loss.at, 2)
        figures["loss to its record, s"] = round(loss.broken, 2)
        figures["from leading to its record, s"] = round(loss.at + loss.broken - clocks.leading_at, 2)

    async def _lose_one(self, job: SeenJob) -> Loss:
        record = job.record
        members = [seat for seat in job.seats.values() if seat.member]
        if record is None or record.phase != "Active" or not members:
            raise Missed(f"{job.name} does not train")
        at = await random.choice(members).lose()
        number = record.number
        async with asyncio.timeout(_ROUND_SECONDS):
            while (number, "Broken") not in job.phases:
                await asyncio.sleep(0.002)
            broken = job.phases[number, "Broken"] - at
            while not any(n > number and phase == "Active" for n, phase in job.phases):
                await asyncio.sleep(0.002)
            formed_at = min(at for (n, phase), at in job.phases.items() if n > number and phase == "Active")
            joined_at = max(seat.announced_at for seat in job.seats.values())
            while not any(n > number for n in job.established):
                await asyncio.sleep(0.01)
        return Loss(at, broken, formed_at - joined_at)

    async def _deletion(self) -> None:
        async with self._measured("deletion") as figures:
            began = time.monotonic()
            spaces = namespaces(self.options.namespaces)
            for space in spaces:
                path = f"/apis/{names.API_VERSION}/namespaces/{space}/{names.PLURAL}"
                options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
                answer = await asyncio.to_thread(
                    self.plane.api.request, "DELETE", path, options, timeout=60.0
                )
                assert answer.ok, answer.text
            left: list[str] = []
            while time.monotonic() - began < _LIMIT_SECONDS:
                left = await asyncio.to_thread(self._left)
                if not left:
                    break
                await asyncio.sleep(1.0)
            figures["all gone after, s"] = round(time.monotonic() - began, 1)
            await asyncio.sleep(_SETTLE_SECONDS)
        after = self.samples.take().operator_mebibytes
        figures |= {
            "operator's writes to what is gone": writes_to_what_is_gone(
                Counter(figures["operator's requests"])
            ),
            "operator MiB before all jobs": round(self._idle),
            "operator MiB now": round(after),
            "more than before, %": round(100 * (after / self._idle - 1)),
        }
        if left:
            raise Missed(f"left: {', '.join(left)}")

    def _left(self) -> list[str]:
        """The kinds that still have objects of jobs."""
        selector = f"?labelSelector={names.JOB_LABEL.replace('/', '%2F')}&limit=1"
        kinds = ("/api/v1/pods", "/apis/coordination.k8s.io/v1/leases")
        return [kind for kind in kinds if self.plane.api.request("GET", kind + selector).json()["items"]]


@dataclass(frozen=True)
class Loss:
    """``at`` is monotonic, the others are seconds: from then to the record that the round is over, and from
    the last join to the next round."""

    at: float
    broken: float
    formed: float


def own_parts(clocks: Clocks, since: float) -> list[float]:
    """Milliseconds of passes that found a round over: from the news to the end of the pass in which none of
    its requests was under way, p50 and p99."""
    return quantiles([1000 * one.own for one in clocks.passes if one.broke and one.at >= since])


def namespaces(count: int) -> list[str]:
    """The namespaces of the jobs."""
    return [f"team-{number}" for number in range(count)]


def quantiles(values: Sequence[float]) -> list[float]:
    """p50 and p99; empty without values."""
    ordered = sorted(values)
    return [
        round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for share in (0.5, 0.99)
        if ordered
    ]


def longest(seconds: Sequence[float]) -> float:
    """Convert seconds to milliseconds."""
    return round(1000 * max(seconds, default=0.0), 1)


def say(text: str) -> None:
    """Print progress."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)
