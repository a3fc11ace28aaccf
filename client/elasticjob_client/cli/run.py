"""The command ``run``: from a script to a job; ``run_follow`` sees it to its end."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticjob_client.cli import run_options
from elasticjob_client.cli.options import cluster_flags, examples, json_line, json_text, note
from elasticjob_client.errors import ClientError, Unfinished

if TYPE_CHECKING:
    from elasticjob_client.resource import ElasticJob


@click.command(
    "run",
    cls=run_options.ForManifest,
    short_help="Train a script on the cluster and follow its log",
    epilog=examples(
        "elasticjob run train.py --image my-image --replicas 2 -- --lr 0.1",
        "elasticjob run src/train.py --code src --image my-image \\",
        "  --replicas 4 --min 2 --gpus 8 --volume checkpoints:/checkpoints",
        "elasticjob run /app/train.py --in-image --image my-image --detach",
        "elasticjob run train.py --image my-image --name mnist \\",
        "  --dry-run=client -o yaml > job.yaml",
    ),
)
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--image",
    required=True,
    callback=run_options.image,
    help="Container image with torch and everything the script imports. The operator adds the handler (the "
    "package `elasticjob`).",
)
@click.option("--name", help="Job name. [default: script name plus a random suffix]")
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Number of pods.")
@click.option(
    "--min",
    "minimum",
    type=click.IntRange(min=1),
    help="Smallest number of pods to train with (minReplicas). [default: fixed size]",
)
@click.option("--max", "maximum", type=click.IntRange(min=1), help="Upper limit for scaling (maxReplicas).")
@click.option("--spares", type=click.IntRange(min=0), help="Extra pods that stand by.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="GPUs (nvidia.com/gpu) per pod.")
@click.option("--cpu", default="", callback=run_options.quantity, help="CPU request per pod, such as 4.")
@click.option(
    "--memory", default="", callback=run_options.quantity, help="Memory request per pod, such as 16Gi."
)
@click.option(
    "--nproc-per-node",
    default="",
    help="Workers per pod, as in torchrun. [default: one per GPU, else 1]",
)
@click.option(
    "--env",
    "environment",
    multiple=True,
    callback=run_options.variables,
    metavar="NAME=VALUE",
    help="Environment variable; may be repeated.",
)
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    callback=run_options.volumes,
    metavar="CLAIM:/path[:ro]",
    help="Mount an existing PersistentVolumeClaim, with :ro to read only; may be repeated.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    help="Restarts after failures of the script, over the job's whole life; the next failure fails the job. "
    "[default: 5 within an hour]",
)
@click.option(
    "--code",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory to upload; must contain SCRIPT.",
)
@click.option(
    "--in-image", is_flag=True, help="SCRIPT is a path in the image or on a volume; upload nothing."
)
@click.option("--detach", is_flag=True, help="Create the job and return.")
@click.option(
    "--dry-run",
    type=click.Choice(["client", "server"]),
    help="Print the manifest without creating it; `server` also validates it and fills in defaults.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "yaml", "json"]),
    default="text",
    show_default=True,
    help="Output format; yaml needs --dry-run or --detach.",
)
@cluster_flags
def run(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    script: str,
    name: str | None,
    code: Path | None,
    in_image: bool,
    detach: bool,
    dry_run: str | None,
    output: str,
    **asked: Any,
) -> None:
    """Train SCRIPT on the cluster: upload it, create the job, and print rank 0's log.

    Arguments after -- go to the script. SCRIPT, or the directory of --code, goes into a ConfigMap and must
    be smaller than 1 MB. Put larger code into the image or on a volume and use --in-image.

    Exits with the script's exit code (0 if the job is Complete).
    """
    from elasticjob_client import manifest

    if output == "yaml" and not (dry_run or detach):
        raise click.UsageError("-o yaml needs --dry-run or --detach: the log that follows is not YAML")
    run_options.check_script(script, code, in_image)
    run_options.check_name(name)
    files: dict[str, bytes] = {}
    try:
        if not in_image:
            script, files = manifest.packed(Path(script), code)
        for line in manifest.skipped(code) if code else ():
            click.echo(f"not uploaded: {line}", err=True)
    except UnicodeError as error:
        raise click.UsageError(str(error)) from error
    except (ValueError, OSError) as error:
        raise ClientError(str(error)) from error
    name = name or manifest.name_of(script, secrets.token_hex(2))
    job = manifest.elastic_job(manifest.Run(name=name, script=script, **asked), files)
    code_map = manifest.config_map(name, files) if files else None
    if dry_run == "client":
        _print(_in_namespace(namespace, code_map, job.to_dict()), output)
        return

    from elasticjob_client import Jobs

    with Jobs(namespace, kubeconfig=kubeconfig, context=context, notice=note) as jobs:
        if dry_run:
            served = _as_served(jobs.submit(job, dry_run=True))
            _print(_in_namespace(jobs.namespace, code_map, served.to_dict()), output)
            return
        from elasticjob_client.cli import run_follow

        try:
            made = run_follow.created(jobs, job, code_map)
            if output == "text":
                click.echo(f"created elasticjob/{name} in namespace {jobs.namespace}", err=True)
            else:
                _print([made.to_dict()], output, on_one_line=not detach)
            if not detach:
                sys.exit(run_follow.follow(jobs, name, output))
        except Unfinished:
            sys.exit(run_follow.half_made(name, code_map, jobs.namespace))
        except KeyboardInterrupt:
            sys.exit(run_follow.interrupted(jobs, name))


def _in_namespace(
    namespace: str | None, code_map: dict[str, Any] | None, job: dict[str, Any]
) -> list[dict[str, Any]]:
    """What is applied. Without a namespace, it goes where kubectl's context leads."""
    place = {"namespace": namespace} if namespace else {}
    return [{**body, "metadata": {**body["metadata"], **place}} for body in (code_map, job) if body]


def _as_served(job: ElasticJob) -> ElasticJob:
    """The manifest with the server's defaults, and without the fields that belong to one object."""
    import msgspec

    metadata = msgspec.structs.replace(
        job.metadata, uid="", resource_version="", generation=0, creation_timestamp=None
    )
    return msgspec.structs.replace(job, metadata=metadata)


def _print(bodies: Iterable[dict[str, Any]], output: str, on_one_line: bool = False) -> None:
    if output == "json":
        found = list(bodies)
        whole = found[0] if len(found) == 1 else {"apiVersion": "v1", "kind": "List", "items": found}
        click.echo(json_line(whole) if on_one_line else json_text(whole), nl=False)
    else:
        from elasticjob_client.cli.manifests import as_yaml

        click.echo(as_yaml(bodies), nl=False)
