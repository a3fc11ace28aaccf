"""The command ``run``: from a script to a job, its first round and its log, and its exit code."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticjob_client.cli.logs import show
from elasticjob_client.cli.options import connected
from elasticjob_client.errors import ClientError

if TYPE_CHECKING:
    from elasticjob_client.jobs import Jobs
    from elasticjob_client.resource import ElasticJob


def _pairs(_: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    separator = ":" if option.name == "volumes" else "="
    pairs = [value.partition(separator) for value in values]
    for first, found, second in pairs:
        if not first or not found or (separator == ":" and not second.startswith("/")):
            expected = "CLAIM:/path" if separator == ":" else "NAME=VALUE"
            raise click.BadParameter(f"{first}{found}{second!r}: expected {expected}")
    return {second: first for first, _, second in pairs} if separator == ":" else {a: c for a, _, c in pairs}


@click.command("run")
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--image", required=True, help="With torch and what the script imports; the handler is added.")
@click.option("--name", help="Of the job; otherwise made from the script's name.")
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Pods.")
@click.option(
    "--min",
    "minimum",
    type=click.IntRange(min=1),
    help="Continue with as few pods as this; otherwise it waits for all.",
)
@click.option("--max", "maximum", type=click.IntRange(min=1), help="Bound for scaling.")
@click.option("--spares", type=click.IntRange(min=0), help="Extra pods that stand by.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="GPUs (nvidia.com/gpu) of each pod.")
@click.option("--cpu", default="", help="CPU request of each pod, such as 4.")
@click.option("--memory", default="", help="Memory request of each pod, such as 16Gi.")
@click.option("--nproc-per-node", default="", help="Worker processes of each pod, as torchrun has it.")
@click.option(
    "--env", "environment", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="Of the container."
)
@click.option(
    "--volume", "volumes", multiple=True, callback=_pairs, metavar="CLAIM:/path", help="A claim to mount."
)
@click.option(
    "--max-restarts", type=click.IntRange(min=0), help="Failures of the script before the job fails."
)
@click.option(
    "--code", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Folder to pack with it."
)
@click.option(
    "--in-image", is_flag=True, help="SCRIPT is a path in the image or on a volume: nothing is packed."
)
@click.option("--detach", is_flag=True, help="Create the job and return.")
@click.option(
    "--dry-run", type=click.Choice(["client", "server"]), help="Print what would be created, and stop."
)
@click.option("-o", "--output", type=click.Choice(["text", "yaml", "json"]), default="text")
@connected
def run(
    jobs: Jobs,
    script: str,
    name: str | None,
    code: Path | None,
    in_image: bool,
    detach: bool,
    dry_run: str | None,
    output: str,
    **asked: Any,
) -> None:
    """Train SCRIPT on the cluster: pack it, create the job, print rank 0's log, end with its exit code.

    What follows -- are the script's own arguments. SCRIPT, or the folder of --code, must fit into a
    ConfigMap: less than 1 MB. Larger code belongs into the image or on a volume: --in-image.
    """
    from elasticjob_client import manifest

    if output == "yaml" and not (dry_run or detach):
        raise click.UsageError("-o yaml needs --dry-run or --detach: the log that follows is not YAML")
    try:
        files: dict[str, bytes] = {}
        if not in_image:
            script, files = manifest.packed(Path(script), code)
        name = name or manifest.name_of(script, secrets.token_hex(2))
        manifest.check_name(name)
    except ValueError as error:
        raise ClientError(str(error)) from error
    job = manifest.elastic_job(manifest.Run(name=name, script=script, **asked), files)
    code_map = manifest.config_map(name, files) if files else None
    if dry_run == "server":
        job = _as_served(jobs.submit(job, dry_run=True))
    if dry_run:
        _print([*([code_map] if code_map else []), job.to_dict()], output)
        return
    made = jobs.launch(job, code_map)
    if output == "text":
        click.echo(f"created elasticjob/{name} in namespace {jobs.namespace}", err=True)
    else:
        _print([made.to_dict()], output, on_one_line=not detach)
    if not detach:
        sys.exit(follow(jobs, name, output))


def _as_served(job: ElasticJob) -> ElasticJob:
    """With the defaults of the server, without what belongs to one object."""
    import msgspec

    metadata = msgspec.structs.replace(
        job.metadata, uid="", resource_version="", generation=0, creation_timestamp=None
    )
    return msgspec.structs.replace(job, metadata=metadata)


def _print(bodies: Iterable[dict[str, Any]], output: str, on_one_line: bool = False) -> None:
    import msgspec
    import yaml

    if output == "json":
        found = list(bodies)
        whole = found[0] if len(found) == 1 else {"apiVersion": "v1", "kind": "List", "items": found}
        found_json = msgspec.json.encode(whole)
        click.echo((found_json if on_one_line else msgspec.json.format(found_json, indent=2)).decode())
    else:
        click.echo(yaml.safe_dump_all(bodies, sort_keys=False), nl=False)


def follow(jobs: Jobs, name: str, output: str = "text") -> int:
    """Say what the job waits for until its first round, then print rank 0's log. Returns the exit code.

    Ctrl-C asks what shall become of the job.
    """
    try:
        said = ""
        for job in jobs.watch(name):
            training = job.condition("Training")
            text = f"{training.reason}: {training.message}" if training else ""
            if text and text != said:
                click.echo(f"{name}: {text}", err=True)
                said = text
            if job.ended or (training and training.status == "True"):
                break
        show(jobs.logs(name, 0, follow=True), prefixed=False, output=output)
        return _ended(jobs.get(name))
    except KeyboardInterrupt:
        return _interrupted(jobs, name)


def _ended(job: ElasticJob) -> int:
    from elasticjob_client.tell.why import exit_status

    ended = next(
        (c for kind in ("Complete", "Failed") if (c := job.condition(kind)) and c.status == "True"), None
    )
    what = f"{ended.type}: {ended.message}" if ended else "ended"
    click.echo(f"{job.name}: {what}", err=True)
    code = exit_status(job)
    if code:
        click.echo(f"`elasticjob why {job.name}` tells more", err=True)
    return code


def _interrupted(jobs: Jobs, name: str) -> int:
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
