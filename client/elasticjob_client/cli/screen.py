"""What people see: tables and sentences from what ``explain`` has concluded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.text import Text

from elasticjob.contract.text import counted
from elasticjob_client.cli.columns import UNBOUNDED, Columns
from elasticjob_client.cli.printing import raw
from elasticjob_client.explain.lease_progress import STALE_SECONDS
from elasticjob_client.explain.listing import JobRow
from elasticjob_client.explain.repeated_advice import once
from elasticjob_client.explain.status import JobStatus, PodRow
from elasticjob_client.explain.terminal_text import excerpt, plain
from elasticjob_client.explain.times import age, duration, milliseconds
from elasticjob_client.explain.why import Story
from elasticjob_client.resource import Account, Round, WorkerStarts

if TYPE_CHECKING:
    from elasticjob_client.events import Event

_COLOURS = {
    "Training": "green",
    "Draining": "green",
    "Complete": "green",
    "Member": "green",
    "Succeeded": "green",
    "Failed": "red",
    "WaitingForFencing": "red",
    "Suspended": "blue",
    "Queued": "blue",
    "Standby": "blue",
}
SHOWN_ROUNDS = 8
"""Rounds that are shown, of the twenty that a status has."""


class PlainConsole(Console):
    """Draws with colours and cursor of its own: the text in what it draws cannot add to them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


def console() -> Console:
    """The terminal; what goes into a pipe or file is neither wrapped nor cut."""
    return PlainConsole(
        file=raw(sys.stdout),
        highlight=False,
        emoji=False,
        width=None if sys.stdout.isatty() else UNBOUNDED,
        soft_wrap=False,
    )


def coloured(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, "yellow"))


def show(found: RenderableType) -> None:
    """Print it on the terminal; what is too wide runs over."""
    console().print(found, crop=False)


def line(text: str, indent: str = "") -> Text:
    """A line of a log, or of what else a pod says, which is not wrapped."""
    return Text(f"{indent}{excerpt(text)}", no_wrap=True, overflow="ignore")


def listing(rows: Sequence[JobRow], all_namespaces: bool) -> RenderableType:
    """The jobs."""
    headings = ["NAME", "STATE", "MEMBERS", "ROUND", "RESTARTS", "STEP", "GOODPUT", "AGE"]
    cells: list[Sequence[str | Text]] = [
        [
            *([row.namespace] if all_namespaces else []),
            row.name,
            coloured(row.state),
            f"{row.members}/{row.replicas if row.replicas is not None else '?'}",
            str(row.round),
            str(row.restarts),
            step(row),
            "-" if row.goodput_percent is None else f"{row.goodput_percent} %",
            "-" if row.age_seconds is None else duration(row.age_seconds),
        ]
        for row in rows
    ]
    return Columns([*(["NAMESPACE"] if all_namespaces else []), *headings], cells)


def status(found: JobStatus, steps_per_second: float | None = None) -> RenderableType:
    """A job: headline, pods, rounds, accounts, what to do."""
    parts: list[RenderableType] = [_headline(found), *_facts(found, steps_per_second)]
    if found.pods:
        parts += ["", _pods(found.pods)]
        parts += [Text(f"{row.pod}: {row.message}") for row in found.pods if row.message]
    if found.rounds:
        parts += ["", _rounds(found.rounds)]
        ended = next((one for one in found.rounds if one.end), None)
        if ended and ended.end:
            parts.append(Text(f"round {ended.number} ended: {ended.end.message}"))
        parts += [Text(_starts(one)) for one in found.rounds if one.worker_starts][:1]
    if used := [a for a in found.accounts if a.used or a.max_restarts is not None]:
        parts += ["", _accounts(used)]
    return Group(*_advised_once(parts), *_next(found.next))


def _advised_once(parts: list[RenderableType]) -> list[RenderableType]:
    at = [number for number, part in enumerate(parts) if isinstance(part, Text)]
    for number, text in zip(at, once([str(parts[number]) for number in at]), strict=True):
        if text != str(parts[number]):
            parts[number] = Text(text)
    return parts


def _headline(found: JobStatus) -> Text:
    line = Text.assemble((found.name, "bold"), " is ", coloured(found.state))
    return line.append(f": {found.message}") if found.message else line


def _facts(found: JobStatus, steps_per_second: float | None) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if now := found.current_round:
        size = (
            f"{now.members} of {counted(found.replicas, 'member')}"
            if found.replicas
            else counted(now.members, "member")
        )
        processes = f", {counted(now.world_size, 'process')}" if now.world_size else ""
        lines.append(Text(f"round {now.number} ({now.phase}), {size}{processes}, formed for {now.cause}"))
    active = "" if found.active_seconds is None else f"job active for {duration(found.active_seconds)}; "
    lines.append(Text(f"{active}{counted(found.restarts, 'restart')}"))
    if found.progress:
        lines.append(Text(_progress(found, steps_per_second)))
    return lines


def rate(steps_per_second: float) -> str:
    """A number with as many digits as are worth reading."""
    return f"{steps_per_second:.1f}" if steps_per_second < 100 else f"{steps_per_second:.0f}"


def step(row: JobRow) -> str:
    """The step, with its age if it is stale."""
    return "-" if row.step is None else f"{row.step}{_ago(row.step_age_seconds)}"


def _ago(seconds: int | None) -> str:
    return f" ({duration(seconds)} ago)" if seconds is not None and seconds > STALE_SECONDS else ""


def _progress(found: JobStatus, steps_per_second: float | None) -> str:
    facts, progress = [], found.progress
    assert progress
    if progress.step is not None:
        facts.append(f"step {progress.step}{_ago(found.progress_age_seconds)}")
    if progress.milliseconds_per_step is not None:
        speed = "" if steps_per_second is None else f", {rate(steps_per_second)} steps/s"
        facts.append(f"{milliseconds(progress.milliseconds_per_step)} per step{speed}")
    if progress.goodput_percent is not None:
        facts.append(f"goodput {progress.goodput_percent} %")
    if progress.lost_seconds:
        causes = sorted(progress.lost_by_cause, key=lambda lost: -lost.milliseconds)[:3]
        by = ", ".join(f"{lost.cause} {milliseconds(lost.milliseconds)}" for lost in causes)
        facts.append(f"{duration(progress.lost_seconds)} lost" + (f" ({by})" if by else ""))
    return "; ".join(facts)


def _pods(rows: Sequence[PodRow]) -> RenderableType:
    cells: list[Sequence[str | Text]] = [
        [
            "-" if row.rank is None else str(row.rank),
            row.pod,
            row.node or "-",
            coloured(row.role),
            "-" if row.processes is None else str(row.processes),
        ]
        for row in rows
    ]
    return Columns(["GROUP RANK", "POD", "NODE", "STATE", "PROCESSES"], cells)


def _rounds(rounds: Sequence[Round]) -> RenderableType:
    cells = []
    for one in rounds[:SHOWN_ROUNDS]:
        lasted = ""
        if one.end and one.end.time and one.start_time:
            lasted = duration((one.end.time - one.start_time).total_seconds())
        steps = "-" if one.first_step is None else f"{one.first_step}-{one.last_step}"
        cells.append(
            [
                str(one.number),
                one.cause,
                str(one.members),
                milliseconds(one.rendezvous_milliseconds),
                milliseconds(one.first_step_milliseconds),
                lasted or "runs",
                steps,
                one.end.cause if one.end else "",
            ]
        )
    headings = ["ROUND", "FORMED FOR", "MEMBERS", "RENDEZVOUS", "FIRST STEP", "LASTED", "STEPS", "ENDED BY"]
    return Columns(headings, cells)


def _starts(one: Round) -> str:
    """How the workers of a round were started."""
    starts = one.worker_starts or WorkerStarts()
    why = f" ({starts.cold_reason})" if starts.cold and starts.cold_reason else ""
    return f"workers of round {one.number}: {starts.warm} started warm, {starts.cold} cold{why}"


def _accounts(accounts: Sequence[Account]) -> RenderableType:
    cells: list[Sequence[str | Text]] = [
        [
            one.name,
            str(one.used),
            "none" if one.max_restarts is None else str(one.max_restarts),
            "whole life" if one.window_seconds is None else duration(one.window_seconds),
        ]
        for one in accounts
    ]
    return Columns(["ACCOUNT", "USED", "LIMIT", "WITHIN"], cells)


def _next(steps: Sequence[str]) -> list[RenderableType]:
    return ["", *(Text.assemble(("next: ", "bold"), step) for step in steps)] if steps else []


def story(found: Story) -> RenderableType:
    """A failure in sentences."""
    parts: list[RenderableType] = [Text(sentence) for sentence in found.sentences]
    if found.log:
        parts += ["", Text(f"The end of {found.log_pod}'s log:", style="bold")]
        parts += [line(text, "  ") for text in found.log]
    return Group(*parts, *_next(found.next))


def events(found: Sequence[Event], now: datetime, with_object: bool) -> RenderableType:
    """Events, oldest first."""
    cells: list[Sequence[str | Text]] = [
        [
            age(event.time, now),
            Text(event.reason, style="yellow" if event.type == "Warning" else ""),
            *([event.object] if with_object else []),
            event.message + (f" (x{event.count})" if event.count > 1 else ""),
        ]
        for event in found
    ]
    headings = ["AGE", "REASON", *(["OBJECT"] if with_object else []), "MESSAGE"]
    return Columns(headings, cells, last_wraps=True)
