"""Tables whose columns never shrink: on a narrow terminal lines run over, as those of kubectl do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from elasticjob_client.explain.terminal_text import plain

UNBOUNDED = 100_000
_GAP = 2
_LEAST_WRAPPED = 24
"""So wide the last column is at least, where it wraps."""


class Columns:
    """Columns with two blanks between, as kubectl's. ``last_wraps``: the last one does, in what is left."""

    def __init__(
        self, headings: Iterable[str], rows: Iterable[Sequence[str | Text]], last_wraps: bool = False
    ) -> None:
        self._table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        names = list(headings)
        wide = [len(name) for name in names]
        for number, name in enumerate(names):
            last = last_wraps and number == len(names) - 1
            self._table.add_column(name, no_wrap=not last, overflow="fold")
        for cells in rows:
            texts = [Text(plain(cell)) if isinstance(cell, str) else cell for cell in cells]
            wide = [max(least, text.cell_len) for least, text in zip(wide, texts, strict=True)]
            self._table.add_row(*texts)
        self._least = UNBOUNDED
        if last_wraps:
            self._least = sum(wide[:-1]) + _GAP * len(wide) + min(wide[-1], _LEAST_WRAPPED)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = options.update(width=max(options.max_width, self._least))
        for line in console.render_lines(self._table, whole, pad=False):
            yield from _stripped(line)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options.update(width=UNBOUNDED), self._table)


def _stripped(line: Sequence[Segment]) -> list[Segment]:
    """Strip the blanks at its end, which would make lines of their own."""
    found = list(line)
    while found:
        text, style, control = found.pop()
        if stripped := text.rstrip():
            return [*found, Segment(stripped, style, control)]
    return found
