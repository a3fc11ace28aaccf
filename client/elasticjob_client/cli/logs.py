"""Commands that reach into pods: logs and exec."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.options import connected, examples, job_name, json_line, output
from elasticjob_client.cli.printing import log_line
from elasticjob_client.errors import ClientError

if TYPE_CHECKING:
    from elasticjob_client import Jobs
    from elasticjob_client.explain.lines import Line
    from elasticjob_client.resource import ElasticJob

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@click.command(
    "logs",
    short_help="Print the training log (rank 0 by default)",
    epilog=examples(
        "elasticjob logs mnist -f",
        "elasticjob logs mnist --rank 3 --tail 100",
        "elasticjob logs mnist --all --since-failure",
    ),
)
@job_name
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    help="Group rank: the pod's number in `elasticjob status`; PyTorch's GROUP_RANK. [default: 0]",
)
@click.option("--all", "everyone", is_flag=True, help="All pods, sorted by time, with rank and pod in front.")
@click.option("--round", "number", type=int, help="Only lines from this round.")
@click.option("--since-failure", is_flag=True, help="From 30 s before the last failure.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Last N lines of each pod.")
@click.option("-f", "--follow", is_flag=True, help="Follow until the job ends, including replacement pods.")
@click.option(
    "--raw",
    "as_it_is",
    is_flag=True,
    help="Print lines as the pods wrote them, with what they say to the terminal; otherwise colours at most.",
)
@output
@connected
def logs(
    jobs: Jobs,
    name: str,
    rank: int | None,
    everyone: bool,
    number: int | None,
    since_failure: bool,
    tail: int | None,
    follow: bool,
    as_it_is: bool,
    output: str,
) -> None:
    """Print the training log of rank 0, of another rank, or of all pods, including pods that have ended."""
    from elasticjob_client.cli.silent_log import Silence, failed, reason

    if everyone and rank is not None:
        raise click.UsageError("--rank and --all exclude each other")
    one = None if everyone else rank or 0
    if one:
        _check_rank(jobs.get(name), one)
    try:
        found = jobs.logs(name, one, round=number, since_failure=since_failure, tail=tail, follow=follow)
        if follow:
            with Silence(jobs, name) as silence:
                count = show(silence.over(found), everyone, output, as_it_is)
        else:
            count = show(found, everyone, output, as_it_is)
    except ValueError as error:
        raise ClientError(str(error)) from error
    if not count:
        job = jobs.get(name)
        text = failed(job) or reason(job) or f"`elasticjob status {name}` shows which pods have started"
        click.echo(f"no lines: {text}", err=True)


def _check_rank(job: ElasticJob, rank: int) -> None:
    """Before the first round, ranks are given by slot: there is one for each replica."""
    most = job.spec.max_replicas or job.spec.replicas
    if not job.members and most and rank >= most:
        raise ClientError(f"{job.name} has no group rank {rank}: expected 0 to {most - 1}")


def show(found: Iterable[Line], prefixed: bool, output: str = "text", as_it_is: bool = False) -> int:
    """Print lines as they come; as JSON, one object in each line. Returns how many."""
    from rich.text import Text

    from elasticjob_client.cli import screen
    from elasticjob_client.explain.terminal_text import coloured

    terminal, count = screen.console(), 0
    for line in found:
        count += 1
        who = f"[{'-' if line.rank is None else line.rank} {line.pod}]" if prefixed else ""
        if output == "json":
            sys.stdout.write(json_line(line))
        elif as_it_is or not prefixed:
            log_line(f"{who} {line.text}" if who else line.text, as_it_is)
        else:
            style = _COLOURS[(line.rank or 0) % len(_COLOURS)] if line.rank is not None else "dim"
            for part in line.text.split("\r"):  # a bar's states, of which rich would show the last
                text = Text.from_ansi(coloured(part))
                terminal.print(Text.assemble((who, style), " ", text), soft_wrap=True)
        sys.stdout.flush()
    return count


@click.command(
    "exec",
    short_help="Run a command in a rank's pod",
    epilog=examples("elasticjob exec mnist --rank 3 -- nvidia-smi"),
)
@job_name
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Group rank: the pod's number in `elasticjob status`; PyTorch's GROUP_RANK.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@connected
def execute(jobs: Jobs, name: str, rank: int, command: Sequence[str]) -> None:
    """Run COMMAND in the training container of a rank, by `kubectl exec`."""
    from elasticjob_client.pods import of_rank

    job = jobs.get(name)
    running = [pod for pod in of_rank(job, jobs.pods(name), rank) if pod.phase == "Running"]
    if not running:
        raise ClientError(
            f"no pod of {name} with group rank {rank} runs: `elasticjob status {name}` shows its pods"
        )
    words = exec_words(
        jobs, running[-1].name, running[-1].container, sys.stdin.isatty() and sys.stdout.isatty()
    )
    os.execv(kubectl("exec"), [*words, "--", *command])


def kubectl(command: str) -> str:
    """The program's path. Raises ClientError in the name of a command of ours."""
    found = shutil.which("kubectl")
    if not found:
        raise ClientError(
            f"kubectl is not in PATH: `elasticjob {command}` uses it to run commands in pods. Install kubectl"
        )
    return found


def exec_words(jobs: Jobs, pod: str, container: str, terminal: bool) -> list[str]:
    """kubectl's command line, with the cluster that this command was given."""
    words = ["kubectl", *jobs.kubectl_flags, "exec", "-i"]
    return [*words, *(["-t"] if terminal else []), pod, *(["-c", container] if container else [])]
