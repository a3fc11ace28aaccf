"""The command ``convert``: manifests of Kubeflow in, manifests of ElasticJobs out. It asks no cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from elasticjob_client.cli.options import examples
from elasticjob_client.errors import ClientError

if TYPE_CHECKING:
    from elasticjob_client.convert.result import Converted


@click.command(
    "convert",
    short_help="Convert PyTorchJobs and TrainJobs",
    epilog=examples(
        "elasticjob convert pytorchjob.yaml > elasticjob.yaml",
        "elasticjob convert trainjob.yaml runtime.yaml -o json",
        "kubectl get pytorchjob mnist -o yaml | elasticjob convert -",
    ),
)
@click.argument("files", nargs=-1, required=True, type=click.File())
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Output format.",
)
def convert(files: Sequence[TextIO], output: str) -> None:
    """Print ElasticJobs for the PyTorchJobs and TrainJobs in FILES (- is stdin).

    Fields without a counterpart are named on stderr. A TrainJob also needs the file of its runtime.
    """
    import msgspec
    import yaml

    from elasticjob_client.convert import trainjob

    bodies = [body for file in files for body in _documents(file)]
    runtimes = {
        (body["kind"], body.get("metadata", {}).get("name")): body
        for body in bodies
        if body["kind"] in trainjob.RUNTIMES
    }
    jobs = [body for body in bodies if body["kind"] in ("PyTorchJob", "TrainJob")]
    if not jobs:
        found = ", ".join(sorted({body["kind"] for body in bodies})) or "nothing"
        raise ClientError(f"nothing to convert: found {found}, expected a PyTorchJob or a TrainJob")
    made: list[dict[str, Any]] = []
    for body in jobs:
        name = f"{body['kind']} {body.get('metadata', {}).get('name', '')}"
        try:
            result = _converted(body, runtimes)
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise ClientError(f"{name} cannot be converted: {error}") from error
        for note in result.notes:
            click.echo(f"{name}: {note}", err=True)
        made += result.bodies
    if output == "json":
        whole = made[0] if len(made) == 1 else {"apiVersion": "v1", "kind": "List", "items": made}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n")
    else:
        sys.stdout.write(yaml.safe_dump_all(made, sort_keys=False))


def _converted(body: dict[str, Any], runtimes: dict[tuple[str, Any], dict[str, Any]]) -> Converted:
    from elasticjob_client.convert import pytorchjob, trainjob

    if body["kind"] == "PyTorchJob":
        return pytorchjob.converted(body)
    reference = (body.get("spec") or {}).get("runtimeRef") or {}
    kind = reference.get("kind", trainjob.RUNTIMES[0])
    return trainjob.converted(body, runtimes.get((kind, reference.get("name"))))


def _documents(file: TextIO) -> list[dict[str, Any]]:
    """The objects in a file; those of a List one by one."""
    import yaml

    try:
        found = [one for one in yaml.safe_load_all(file) if one is not None]
    except yaml.YAMLError as error:
        raise ClientError(f"{file.name} is not YAML: {error}") from error
    bodies: list[dict[str, Any]] = []
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
            raise ClientError(f"{file.name} has a document that is no Kubernetes object: it has no kind")
        bodies += one.get("items") or [] if one["kind"].endswith("List") else [one]
    return bodies
