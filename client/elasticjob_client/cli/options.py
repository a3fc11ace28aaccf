"""What all commands share: flags as kubectl has them, the connection, and output as JSON."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import click

from elasticjob_client.errors import ClientError
from elasticjob_client.explain.terminal_text import escaped
from elasticjob_client.names import check_name, is_name


def name_of(kind: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Takes the name of "a job" or "a namespace", and raises BadParameter for what cannot be one."""

    def checked(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        try:
            if value is not None:
                check_name(kind, value)
        except ValueError as error:
            short = str(value).rpartition("/")[2]
            meant = f"; do you mean {short}?" if short != value and is_name(kind, short) else ""
            raise click.BadParameter(f"{error}{meant}") from None
        return value

    return checked


_CLUSTER = (
    click.option("--kubeconfig", metavar="FILE", help="Kubeconfig to use, as in kubectl."),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig to use."),
    click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        callback=name_of("a namespace"),
        help="Namespace. [default: that of the context]",
    ),
)


def cluster_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give it the flags that choose cluster and namespace."""
    for flag in reversed(_CLUSTER):
        command = flag(command)
    return command


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags that choose the cluster, and as its first argument the namespace's jobs."""

    @cluster_flags
    @functools.wraps(command)
    def with_jobs(kubeconfig: str | None, context: str | None, namespace: str | None, **others: Any) -> None:
        from elasticjob_client import Jobs

        with Jobs(namespace, kubeconfig=kubeconfig, context=context, notice=note) as jobs:
            command(jobs, **others)

    return with_jobs


output = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format.",
)


def note(text: str) -> None:
    """Say on stderr what is not the command's own output: that a server is away, that a log breaks off."""
    click.echo(text, err=True)


def confirm(question: str) -> None:
    """Ask on the terminal, and go on only after yes. Raises ClientError without a terminal."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        if sys.stdin.isatty():
            raise
        click.echo("", err=True)
        raise ClientError("there is no terminal to answer on: --yes goes on without the question") from None
    if not agreed:
        raise click.Abort


def examples(*lines: str) -> str:
    """The end of a command's help: these command lines, unwrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _names(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """The jobs that a half-typed name may mean; none if the cluster does not say."""
    from elasticjob_client import Jobs

    chosen = {key: context.params.get(key) for key in ("kubeconfig", "context")}
    try:
        with Jobs(context.params.get("namespace"), **chosen, notice=lambda _: None) as jobs:
            return [job.name for job in jobs.all() if job.name.startswith(begun)]
    except Exception:  # noqa: BLE001 - any error would stand in the middle of a shell's prompt
        return []


job_name = click.argument("name", metavar="JOB", shell_complete=_names, callback=name_of("a job"))
optional_job_name = click.argument(
    "name", metavar="[JOB]", required=False, shell_complete=_names, callback=name_of("a job")
)


def json_text(found: Any) -> str:
    """JSON with line breaks; times are RFC 3339."""
    import msgspec

    return escaped(msgspec.json.format(msgspec.json.encode(found), indent=2).decode()) + "\n"


def json_line(found: Any) -> str:
    """JSON on one line."""
    import msgspec

    return escaped(msgspec.json.encode(found).decode()) + "\n"


def as_json(found: Any) -> None:
    """Print it."""
    sys.stdout.write(json_text(found))


def now() -> datetime:
    """The present time, from which ages are counted."""
    return datetime.now(timezone.utc)
