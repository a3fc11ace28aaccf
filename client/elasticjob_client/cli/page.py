"""The page of ``report``: one HTML file with drawings in SVG, which loads nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from html import escape

from elasticjob.contract.text import counted
from elasticjob_client.explain.report import Bar, Report
from elasticjob_client.explain.terminal_text import plain
from elasticjob_client.explain.times import duration, milliseconds, ticks

_WIDTH, _LEFT, _ROW = 1000, 90, 24
PALE = 0.55
"""How much white is over the part of a round that comes before its first step."""
_COLOURS = {
    "pod": "#9db4c8",
    "pod that failed": "#d98a7f",
    "pod that was lost": "#c2504a",
    "no round": "#f3d9d7",
}
_CAUSES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<style>
body {{ font: 14px/1.5 sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color: #222; }}
body {{ background: #fff; }}
svg {{ width: 100%; height: auto; }} svg text {{ font: 11px sans-serif; }}
table {{ border-collapse: collapse; }}
td, th {{ text-align: left; padding: 2px 14px 2px 0; vertical-align: top; }}
th, td:not(:last-child) {{ white-space: nowrap; }}
h2 {{ font-size: 1.1em; margin-top: 1.6em; }} .key span {{ padding: 0 6px; margin-right: 6px; }}
</style></head><body>
<h1>{name}</h1>
{body}
</body></html>
"""


def page(found: Report) -> str:
    """The whole page: nothing in it is loaded from elsewhere, and all texts are escaped."""
    job = found.status
    head = f"{job.state}: {job.message}" if job.message else job.state
    parts = [
        f"<p><b>{escape(head)}</b></p>",
        f"<p>{escape(_facts(found))}</p>",
        "<h2>Rounds and pods</h2>",
        _chart(found),
    ]
    if len(found.progress) > 1:
        parts += ["<h2>Steps</h2>", _steps(found)]
    if found.lost:
        parts += ["<h2>Where the time went</h2>", _lost(found)]
    if found.nodes:
        rows = [(name, str(count)) for name, count in found.nodes]
        parts += ["<h2>Losses by node</h2>", _table(("node", "charges"), rows)]
    parts += ["<h2>Rounds</h2>", _rounds(found)]
    return plain(_PAGE.format(name=escape(f"{job.namespace}/{job.name}"), body="\n".join(parts)))


def _facts(found: Report) -> str:
    """What stands above the drawings, in one line."""
    job = found.status
    facts = [
        f"{found.begin:%Y-%m-%d %H:%M:%S} to {found.end:%Y-%m-%d %H:%M:%S %Z}",
        counted(job.restarts, "restart"),
    ]
    if job.progress and job.progress.step is not None:
        facts.append(f"step {job.progress.step}")
    if job.progress and job.progress.goodput_percent is not None:
        facts.append(f"goodput {job.progress.goodput_percent} %")
    return "; ".join([*facts, f"job active for {duration(found.active_seconds)}"])


def _x(found: Report, bar_time: float) -> float:
    whole = max((found.end - found.begin).total_seconds(), 1.0)
    return _LEFT + (bar_time - found.begin.timestamp()) / whole * (_WIDTH - _LEFT - 10)


def colours(bars: Iterable[Bar]) -> dict[str, str]:
    """Colours by kind: those of pods, and one for each cause."""
    causes = dict.fromkeys(bar.kind for bar in bars if bar.kind not in _COLOURS)
    return {**_COLOURS, **{cause: _CAUSES[n % len(_CAUSES)] for n, cause in enumerate(causes)}}


def _chart(found: Report) -> str:
    rows = list(dict.fromkeys(bar.row for bar in found.bars))
    shown = colours(found.bars)
    height = _ROW * (len(rows) + 1) + 6
    drawn = [f'<text x="0" y="{_ROW * n + 16}">{escape(row)}</text>' for n, row in enumerate(rows)]
    for bar in found.bars:
        left, right = _x(found, bar.begin.timestamp()), _x(found, bar.end.timestamp())
        wide, top = max(right - left, 1.5), _ROW * rows.index(bar.row)
        drawn.append(
            f'<g><title>{escape(bar.text)}</title><rect x="{left:.1f}" y="{top + 2}" width="{wide:.1f}" '
            f'height="{_ROW - 4}" fill="{shown[bar.kind]}" stroke="#fff"/>'
            + _pale(found, bar, left, top)
            + (
                f'<text x="{left + 4:.1f}" y="{top + 16}">{escape(bar.label)}</text>'
                if wide > 8 * len(bar.label)
                else ""
            )
            + "</g>"
        )
    key = "".join(
        f'<span style="background:{colour}">&nbsp;</span>{escape(kind)} '
        for kind, colour in shown.items()
        if any(bar.kind == kind for bar in found.bars)
    )
    inner = _axis(found, _ROW * len(rows)) + "".join(drawn)
    key += "(paler: before the first step of the round)"
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{inner}</svg><p class="key">{key}</p>'


def _pale(found: Report, bar: Bar, left: float, top: float) -> str:
    if bar.waits_until is None or bar.waits_until <= bar.begin:
        return ""
    right = _x(found, bar.waits_until.timestamp())
    shape = f"M{left:.1f} {top + 2}H{right:.1f}v{_ROW - 4}H{left:.1f}z"
    return f'<path d="{shape}" fill="#fff" fill-opacity="{PALE}"/>'


def _axis(found: Report, top: float) -> str:
    whole = (found.end - found.begin).total_seconds()
    marks = []
    for seconds in ticks(whole):
        x = _x(found, (found.begin + timedelta(seconds=seconds)).timestamp())
        anchor = "end" if seconds > whole * 0.95 else "start"
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{top + 4}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{top + 18}" text-anchor="{anchor}" fill="#666">{duration(seconds)}</text>'
        )
    return "".join(marks)


def _steps(found: Report) -> str:
    height = 160
    most = max(step for _, step in found.progress) or 1
    points = " ".join(
        f"{_x(found, time.timestamp()):.1f},{height - 6 - step / most * (height - 20):.1f}"
        for time, step in found.progress
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height + 24}" role="img"><text x="0" y="20">{most}</text>'
        f'<text x="0" y="{height - 4}">0</text>{_axis(found, height)}'
        f'<polyline points="{points}" fill="none" stroke="#4477aa" stroke-width="2"/></svg>'
    )


def _lost(found: Report) -> str:
    whole = max(found.active_seconds * 1000, 1)
    rows = [
        (one.cause, milliseconds(one.milliseconds), f"{one.milliseconds / whole:.1%}") for one in found.lost
    ]
    return _table(("cause of the round that followed", "without progress", "of the active time"), rows)


def _rounds(found: Report) -> str:
    rows = []
    for one in found.status.rounds:
        steps = "-" if one.first_step is None else f"{one.first_step} to {one.last_step}"
        ended = f"{one.end.cause}: {one.end.message}" if one.end else "runs"
        met, first = milliseconds(one.rendezvous_milliseconds), milliseconds(one.first_step_milliseconds)
        rows.append((str(one.number), one.cause, str(one.members), met, first, steps, ended))
    return _table(("round", "formed for", "members", "rendezvous", "first step", "steps", "ended by"), rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{lines}</table>"
