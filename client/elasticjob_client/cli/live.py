"""What ``top`` draws on the whole screen, until q."""

from __future__ import annotations

import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from elasticjob_client.cli import screen
from elasticjob_client.cli.options import now
from elasticjob_client.errors import NoServer
from elasticjob_client.tell.timeline import Slice, captions
from elasticjob_client.tell.times import duration
from elasticjob_client.tell.top import TopJob, TopRow

_GLYPHS = {
    Slice.BEFORE: (" ", ""),
    Slice.TRAINING: ("█", "green"),
    Slice.BETWEEN: ("░", "yellow"),
    Slice.LOSS: ("▼", "red"),
}
_KEY = "█ a round ran  ░ none did  ▼ a loss ended one"


def show(look: Callable[[], list[TopRow] | TopJob], where: str, interval: float) -> None:
    """Until q. A server that is away is named below what was seen last; any other error ends it."""
    view, trouble = _view(look(), where), ""
    with _keys() as pressed, Live(console=screen.console(), screen=True, auto_refresh=False) as live:
        while True:
            foot = Text(trouble, style="red") if trouble else Text("q: quit", style="dim")
            live.update(Group(view, "", foot), refresh=True)
            if pressed(interval) in ("q", "Q", ""):
                return
            try:
                view, trouble = _view(look(), where), ""
            except NoServer as error:
                trouble = str(error)


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Keys without Enter: waits so many seconds, gives the first, None if there was none, "" at the end of
    the terminal."""
    before = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float) -> str | None:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else None

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _view(found: list[TopRow] | TopJob, where: str) -> RenderableType:
    return _job(found) if isinstance(found, TopJob) else _list(found, where)


def _list(rows: list[TopRow], where: str) -> RenderableType:
    training = sum(row.job.state in ("Training", "Draining") for row in rows)
    count = f"{len(rows)} job{'' if len(rows) == 1 else 's'}"
    head = Text(f"{count} in {where}, {training} training; {now():%H:%M:%S} UTC")
    cells: list[Sequence[str | Text]] = [
        [
            row.job.namespace,
            row.job.name,
            screen.coloured(row.job.state),
            f"{row.job.members}/{row.job.replicas if row.job.replicas is not None else '?'}",
            str(row.job.round),
            str(row.job.restarts),
            "-" if row.job.step is None else str(row.job.step),
            "-" if row.steps_per_second is None else screen.rate(row.steps_per_second),
            "-" if row.job.goodput_percent is None else f"{row.job.goodput_percent} %",
            _bar(row.rounds),
        ]
        for row in rows
    ]
    headings = ["NAMESPACE", "NAME", "STATE", "MEMBERS", "ROUND", "RESTARTS", "STEP", "STEPS/S", "GOODPUT"]
    return Group(head, "", screen.table([*headings, "LAST HOUR"], cells), "", Text(_KEY, style="dim"))


def _job(found: TopJob) -> RenderableType:
    parts: list[RenderableType] = [screen.status(found.status, found.steps_per_second)]
    if found.begin and found.end:
        left = f"{found.begin:%H:%M:%S} "
        line = Text.assemble(
            left,
            _bar(found.rounds),
            f" {found.end:%H:%M:%S} UTC, {duration((found.end - found.begin).total_seconds())}",
        )
        below = captions(found.status.rounds, found.begin, found.end, len(found.rounds))
        parts += ["", line, Text(" " * len(left) + below), Text(_KEY, style="dim")]
    return Group(*parts)


def _bar(slices: list[Slice]) -> Text:
    return Text.assemble(*(_GLYPHS[one] for one in slices))
