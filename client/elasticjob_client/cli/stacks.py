"""The command ``stacks``: where each worker is now."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import click

from elasticjob_client.cli.logs import kubectl
from elasticjob_client.cli.options import as_json, connected, job_name, output
from elasticjob_client.errors import ClientError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elasticjob_client import Jobs
    from elasticjob_client.explain.stacks import Answer, Stacks
    from elasticjob_client.pods import Pod

TIMEOUT_SECONDS = 60.0
"""How long one pod may take to answer; its workers have three seconds of it."""
_AT_ONCE = 16


@click.command("stacks", short_help="Show every worker's Python stack")
@job_name
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    help="Only the pod of this group rank: its number in `elasticjob status`; PyTorch's GROUP_RANK.",
)
@output
@connected
def stacks(jobs: Jobs, name: str, rank: int | None, output: str) -> None:
    """Show the Python stack of every worker's main thread, by rank, while training continues.

    It runs a command in each pod with `kubectl exec`.
    """
    from concurrent.futures import ThreadPoolExecutor

    from elasticjob_client.cli import screen
    from elasticjob_client.explain import stacks as explain_stacks

    job, pods = jobs.get(name), jobs.pods(name)
    try:
        asked = explain_stacks.asked(job, pods, rank)
    except ValueError as error:
        raise ClientError(str(error)) from error
    program = kubectl("stacks")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda pod: _ask(jobs, program, pod), asked))
    found = explain_stacks.stacks(job, dict(zip([pod.name for pod in asked], answers, strict=True)), asked)
    if output == "json":
        as_json(found)
    else:
        screen.show(_shown(found))
        for line in found.missing if found.stacks else ():
            click.echo(line, err=True)
    if not found.stacks:
        raise ClientError("; ".join(found.missing))


def _ask(jobs: Jobs, program: str, pod: Pod) -> Answer:
    from elasticjob_client.explain.stacks import COMMAND, Answer

    container = ["-c", pod.container] if pod.container else []
    words = [program, *jobs.kubectl_flags, "exec", pod.name, *container, "--", *COMMAND]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(exit_code=1, output="", error=f"no answer within {TIMEOUT_SECONDS:.0f} s")
    return Answer(exit_code=done.returncode, output=done.stdout, error=done.stderr)


def _shown(found: Stacks) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from elasticjob_client.cli import screen

    parts: list[RenderableType] = []
    for one in found.stacks:
        where = f"{one.pod} on {one.node}, " if one.node else f"{one.pod}, "
        title = Text.assemble((f"rank {one.rank}", "bold"), f" ({where}pid {one.pid})")
        parts.append(title.append(f": {one.error}" if one.error else ""))
        parts += [screen.line(text) for text in one.stack.splitlines()[1:]]
    return Group(*parts)
