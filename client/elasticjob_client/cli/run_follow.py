"""What ``run`` does once the job is asked for: sees it created, follows its log, and says how it ended."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from elasticjob_client.cli.log_end import of_failure
from elasticjob_client.cli.logs import show
from elasticjob_client.cli.silent_log import Silence, unseen
from elasticjob_client.errors import AlreadyThere, ClientError, Rejected, Unfinished

if TYPE_CHECKING:
    from elasticjob_client import Jobs
    from elasticjob_client.resource import ElasticJob

UNSEEN_SECONDS = 10.0
"""After which a job without a status is worth a sentence."""


def created(jobs: Jobs, job: ElasticJob, code_map: dict[str, Any] | None) -> ElasticJob:
    """Create it. Ctrl-C waits until it is there, and is raised then; the second raises Unfinished at once.
    Where it cannot be created after a Ctrl-C, that is said, and the program ends with 130."""
    name, pressed = job.name, list[bool]()
    try:
        with _once_done(pressed, f"creating {name}; Ctrl-C again does not wait for it"):
            return jobs.launch(job, code_map)
    except ClientError as error:
        found = _with_another_name(error, name)
        if pressed:
            click.echo(str(found), err=True)
            sys.exit(130)
        if found is error:
            raise
        raise found from error


def _with_another_name(error: ClientError, name: str) -> ClientError:
    """The error, with what to do if another job has the name."""
    if not isinstance(error, AlreadyThere) or "create ElasticJob" not in str(error):
        return error
    return Rejected(f"{error}. Choose another --name, or delete that job: `elasticjob delete {name}`")


@contextmanager
def _once_done(pressed: list[bool], text: str) -> Iterator[None]:
    """Raises KeyboardInterrupt at the end if there was a Ctrl-C, and Unfinished at once for the second.
    ``pressed`` has one entry for each."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(_: int, __: FrameType | None) -> None:
        pressed.append(True)
        if len(pressed) > 1:
            raise Unfinished
        click.echo(f"\n{text}", err=True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def follow(jobs: Jobs, name: str, output: str = "text") -> int:
    """Say what the job waits for until its first round, then print rank 0's log. Returns the exit code.

    Ctrl-C asks what shall become of the job.
    """
    try:
        said = _first_round(jobs, name)
        with Silence(jobs, name, said) as silence:
            show(silence.over(jobs.logs(name, 0, follow=True)), prefixed=False, output=output)
        return _ended(jobs, name)
    except KeyboardInterrupt:
        return interrupted(jobs, name)


def _first_round(jobs: Jobs, name: str) -> str:
    """Wait for it. Returns what was said last."""
    said = ""
    late = threading.Timer(UNSEEN_SECONDS, lambda: click.echo(unseen(name), err=True))
    late.daemon = True
    late.start()
    try:
        for job in jobs.watch(name):
            training = job.condition("Training")
            if training:
                late.cancel()
            text = f"{training.reason}: {training.message}" if training else ""
            if text and text != said:
                click.echo(f"{name}: {text}", err=True)
                said = text
            if job.ended or (training and training.status == "True"):
                break
    finally:
        late.cancel()
    return said


def _ended(jobs: Jobs, name: str) -> int:
    from elasticjob_client.explain.terminal_text import excerpt
    from elasticjob_client.explain.why import exit_status

    job = jobs.get(name)
    ended = next(
        (c for kind in ("Complete", "Failed") if (c := job.condition(kind)) and c.status == "True"), None
    )
    code = exit_status(job)
    if code:
        pod, log = of_failure(jobs, job)
        if log:
            click.echo(f"The end of {pod}'s log:", err=True)
            click.echo("\n".join(f"  {excerpt(line)}" for line in log), err=True)
    what = f"{ended.type}: {ended.message}" if ended else "ended"
    click.echo(f"{name}: {what}", err=True)
    if code:
        click.echo(f"`elasticjob why {name}` tells more", err=True)
    return code


def interrupted(jobs: Jobs, name: str) -> int:
    """Ask what shall become of a job that is there. Returns the exit code."""
    click.echo("", err=True)
    delete = False
    try:
        if sys.stdin.isatty():
            delete = click.confirm(f"delete {name}? Otherwise it goes on without you", err=True)
    except click.Abort:
        click.echo("", err=True)
    if delete:
        jobs.delete(name)
        click.echo(f"{name}: deleted", err=True)
    else:
        click.echo(f"{name} goes on: `elasticjob logs {name} -f`, `elasticjob delete {name}`", err=True)
    return 130


def half_made(name: str, code_map: dict[str, Any] | None, namespace: str) -> int:
    """Say what may exist if the creation was not waited for. Returns the exit code."""
    there = f"`elasticjob status -n {namespace} {name}` shows whether the job {name} was created"
    code = (
        f"; without the job, or after it, delete its code: `kubectl -n {namespace} delete configmap "
        f"{code_map['metadata']['name']} --ignore-not-found`"
        if code_map
        else ""
    )
    click.echo(f"\n{there}{code}", err=True)
    return 130
