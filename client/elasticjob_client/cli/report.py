"""The command ``report``: a page, one file that needs nothing else: to be kept, printed or passed on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from elasticjob_client.cli.options import as_json, connected, examples, job_name, json_text, now
from elasticjob_client.errors import ClientError

if TYPE_CHECKING:
    from elasticjob_client import Jobs

_KINDS = ("html", "json")


def _kind(file: Path) -> str | None:
    ending = file.suffix.lower().removeprefix(".")
    return ending if ending in _KINDS else None


def _output(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Raises BadParameter unless it is one of the kinds, or, as scripts may have it, a file of one."""
    if value and value not in _KINDS and not _kind(Path(value)):
        raise click.BadParameter(f"{value!r}: expected html or json; -f names a file")
    return value


def _file(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    """Raises BadParameter for -, which is no file."""
    if value == Path("-"):
        raise click.BadParameter("'-' is no file: -o json prints the report; /dev/stdout takes a page")
    return value


def _chosen(name: str, file: Path | None, output: str | None) -> tuple[str, Path | None]:
    """The kind, and the file; None to print. Raises UsageError if they contradict each other."""
    if output and output not in _KINDS:
        if file:
            raise click.UsageError(f"-o {output} and -f {file} are two files: name one")
        file, output = Path(output), None
    ending = _kind(file) if file else None
    if file and output and ending and ending != output:
        raise click.UsageError(f"-o {output} and -f {file} are two formats: name one")
    if file and file.suffix and not output and not ending:
        raise click.UsageError(f"-f {file}: expected a name that ends in .html or .json")
    kind = output or ending or "html"
    return kind, file or (None if kind == "json" else Path(f"{name}.{kind}"))


def _outputs(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    words = [CompletionItem(kind) for kind in _KINDS if kind.startswith(begun)]
    return [*words, CompletionItem(begun, type="file")]


@click.command(
    "report",
    short_help="Write an HTML report",
    epilog=examples(
        "elasticjob report mnist",
        "elasticjob report mnist -f results/mnist.html",
        "elasticjob report mnist -o json",
    ),
)
@job_name
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_file,
    help="Output file; the extension (.html, .json) sets the format. [default: JOB.html]",
)
@click.option(
    "-o",
    "--output",
    metavar="html|json",
    callback=_output,
    shell_complete=_outputs,
    help="Output format: writes JOB.html, or prints JSON. [default: html]",
)
@connected
def report(jobs: Jobs, name: str, file: Path | None, output: str | None) -> None:
    """Write a report as an HTML page, which a browser prints.

    It shows rounds and pods over time, where the time went, and losses by node.
    """
    from elasticjob_client.cli import files, partial_results
    from elasticjob_client.cli.page import page
    from elasticjob_client.explain import report as explain_report

    kind, target = _chosen(name, file, output)
    try:
        found = explain_report.report(
            jobs.refreshed(jobs.get(name)), partial_results.pods(jobs, name) or (), now()
        )
    except ValueError as error:
        raise ClientError(str(error)) from error
    if target is None:
        as_json(found)
        return

    text = json_text(found) if kind == "json" else page(found)
    try:
        files.replace(target, text)
    except OSError as error:
        raise ClientError(f"cannot write {target}: {error.strerror}") from error
    click.echo(f"wrote {target}", err=not files.is_plain(target))
