"""What ``top`` draws on the whole screen, until q."""

from __future__ import annotations

import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import SegmentLines
from rich.text import Text

from elasticjob.contract.text import counted
from elasticjob_client.cli import screen
from elasticjob_client.cli.columns import Columns
from elasticjob_client.cli.options import now
from elasticjob_client.errors import NoServer
from elasticjob_client.explain.timeline import Slice, captions
from elasticjob_client.explain.times import duration
from elasticjob_client.explain.top import TopJob, TopRow

_GLYPHS = {
    Slice.BEFORE: (" ", ""),
    Slice.TRAINING: ("█", "green"),
    Slice.BETWEEN: ("░", "yellow"),
    Slice.LOSS: ("▼", "red"),
}
_ANY_WIDTH = 100_000
_KEY = "█ a round ran  ░ none did  ▼ a loss ended one"


def show(look: Callable[[], list[TopRow] | TopJob], namespace: str | None, interval: float) -> None:
    """Show the jobs of this namespace, or of all, until q.

    A server that is away is named below what was seen last. Any other error ends it.
    """
    found, trouble = look(), ""
    terminal = screen.console()
    with _keys() as pressed, Live(console=terminal, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view(found, namespace, trouble, terminal), refresh=True)
            if pressed(interval) in ("q", "Q", ""):
                return
            try:
                found, trouble = look(), ""
            except NoServer as error:
                trouble = str(error)


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Keys without Enter: waits this many seconds, returns the first key, None without one, "" at the end of
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


def view(
    found: list[TopRow] | TopJob, namespace: str | None, trouble: str, terminal: Console
) -> RenderableType:
    """Cut to the height of this terminal: tables lose their last lines."""
    if isinstance(found, TopJob):
        body, bar = screen.status(found.status, found.steps_per_second), _timeline(found)
    else:
        body, bar = _list(found, namespace, terminal), [Text(_KEY, style="dim")]
    last = Text(trouble, style="red") if trouble else Text("q: quit", style="dim")
    foot = terminal.render_lines(Group("", *bar, "", last))
    lines = terminal.render_lines(body)
    room = max(1, terminal.height - len(foot))
    if len(lines) > room:
        more = Text("... a higher terminal shows more", style="dim")
        lines = [*lines[: room - 1], *terminal.render_lines(more)]
    return SegmentLines([*lines, *foot], new_lines=True)


def _list(rows: list[TopRow], namespace: str | None, terminal: Console) -> RenderableType:
    training = sum(row.job.state in ("Training", "Draining") for row in rows)
    count = counted(len(rows), "job")
    where = f"namespace {namespace}" if namespace else "all namespaces"
    head = Text(f"{count} in {where}, {training} training; {now():%H:%M:%S} UTC")
    cells: list[Sequence[str | Text]] = [
        [
            *([] if namespace else [row.job.namespace]),
            row.job.name,
            screen.coloured(row.job.state),
            f"{row.job.members}/{row.job.replicas if row.job.replicas is not None else '?'}",
            str(row.job.round),
            str(row.job.restarts),
            screen.step(row.job),
            "-" if row.steps_per_second is None else screen.rate(row.steps_per_second),
            "-" if row.job.goodput_percent is None else f"{row.job.goodput_percent} %",
            _bar(row.rounds),
        ]
        for row in rows
    ]
    names = ["NAME"] if namespace else ["NAMESPACE", "NAME"]
    headings = [*names, "STATE", "MEMBERS", "ROUND", "RESTARTS", "STEP", "STEPS/S", "GOODPUT"]
    table = Columns([*headings, "LAST HOUR"], cells)
    if terminal.measure(table, options=terminal.options.update(width=_ANY_WIDTH)).maximum > terminal.width:
        table = Columns(headings, [row[:-1] for row in cells])
    return Group(head, "", table)


def _timeline(found: TopJob) -> list[Text]:
    if not (found.begin and found.end):
        return []
    left = f"{found.begin:%H:%M:%S} "
    line = Text.assemble(
        left,
        _bar(found.rounds),
        f" {found.end:%H:%M:%S} UTC, {duration((found.end - found.begin).total_seconds())}",
    )
    below = captions(found.status.rounds, found.begin, found.end, len(found.rounds))
    return [line, Text(" " * len(left) + below), Text(_KEY, style="dim")]


def _bar(slices: list[Slice]) -> Text:
    return Text.assemble(*(_GLYPHS[one] for one in slices))
