"""Figures as Markdown: what all tables of the benchmarks have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.results import Summary


def document(title: str, *paragraphs: str) -> str:
    """A file with a title."""
    return "\n\n".join((f"# {title}", *paragraphs)) + "\n"


def section(title: str, *paragraphs: str) -> str:
    """A section of a file."""
    return "\n\n".join((f"## {title}", *paragraphs))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def facts(environment: Mapping[str, object]) -> str:
    """What the figures depend on besides the code."""
    return ", ".join(f"{name}: {value}" for name, value in environment.items())


def spread(summary: Summary | None) -> str:
    """Median (minimum to maximum) of the measurements that ended well, and how the others ended."""
    if summary is None:
        return "not measured"
    failed = ", ".join(f"{how} ({count} of {summary.runs})" for how, count in summary.failures.items())
    if summary.median is None:
        return failed
    text = f"{number(summary.median)} ({number(summary.low)} to {number(summary.high)})"
    return f"{text}; {failed}" if failed else text


def number(value: float | None) -> str:
    """Three significant digits at most, no exponent; nothing for None."""
    if value is None:
        return ""
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"
