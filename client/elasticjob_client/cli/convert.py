"""The command ``convert``: manifests of Kubeflow in, manifests of ElasticJobs out. It asks no cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from elasticjob_client.cli.options import as_json, examples
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
@click.argument("files", nargs=-1, required=True, type=click.File(encoding="utf-8"))
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
    from elasticjob_client.convert import trainjob

    bodies = [body for file in files for body in _documents(file)]
    for body in bodies:
        _check(body)
    runtimes = {
        (body["kind"], (body.get("metadata") or {}).get("name")): body
        for body in bodies
        if body["kind"] in trainjob.RUNTIMES
    }
    jobs = [body for body in bodies if body["kind"] in ("PyTorchJob", "TrainJob")]
    if not jobs:
        found = ", ".join(sorted({body["kind"] for body in bodies})) or "nothing"
        raise ClientError(f"nothing to convert: found {found}, expected a PyTorchJob or a TrainJob")
    made: list[dict[str, Any]] = []
    for body in jobs:
        name = _named(body)
        try:
            result = _converted(body, runtimes)
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise ClientError(f"{name} cannot be converted: {error}") from error
        for note in result.notes:
            click.echo(f"{name}: {note}", err=True)
        made += result.bodies
    if output == "json":
        whole = made[0] if len(made) == 1 else {"apiVersion": "v1", "kind": "List", "items": made}
        as_json(whole)
    else:
        from elasticjob_client.cli.manifests import as_yaml

        sys.stdout.write(as_yaml(made))


def _converted(body: dict[str, Any], runtimes: dict[tuple[str, Any], dict[str, Any]]) -> Converted:
    from elasticjob_client.convert import pytorchjob, trainjob

    if body["kind"] == "PyTorchJob":
        return pytorchjob.converted(body)
    reference = (body.get("spec") or {}).get("runtimeRef") or {}
    kind = reference.get("kind", trainjob.RUNTIMES[0])
    return trainjob.converted(body, runtimes.get((kind, reference.get("name"))))


def _named(body: dict[str, Any]) -> str:
    """How it is called in notes and errors."""
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{body['kind']} {name}" if name else f"a {body['kind']} without a name"


def _check(body: dict[str, Any]) -> None:
    """Raises ClientError with the field that has another shape than Kubeflow's."""
    from elasticjob_client.convert import shape

    try:
        shape.check(body, shape.SHAPES.get(body["kind"], {}))
    except ValueError as error:
        raise ClientError(f"{_named(body)} cannot be converted: {error}") from error


def _documents(file: TextIO) -> list[dict[str, Any]]:
    """The objects in a file; those of a List one by one."""
    import yaml

    try:
        found = [one for one in yaml.safe_load_all(file) if one is not None]
    except UnicodeDecodeError as error:
        raise ClientError(
            f"{file.name} is not text in UTF-8: {error.reason} at byte {error.start}"
        ) from error
    except RecursionError:
        raise ClientError(f"{file.name} is nested too deeply to be a manifest") from None
    except (yaml.YAMLError, ValueError) as error:  # the latter of a date that there is not
        raise ClientError(f"{file.name} is not YAML: {error}") from error
    bodies: list[dict[str, Any]] = []
    for one in found:
        body = _object(one, file.name)
        if not body["kind"].endswith("List"):
            bodies.append(body)
            continue
        items = body.get("items") or []
        if not isinstance(items, list):
            raise ClientError(f"{file.name}: items of the {body['kind']} is {items!r}: expected a list")
        bodies += [_object(item, f"{file.name}: items[{at}]") for at, item in enumerate(items)]
    return bodies


def _object(found: Any, where: str) -> dict[str, Any]:
    """Raises ClientError unless it is an object of Kubernetes."""
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise ClientError(f"{where} is no Kubernetes object: expected one with a kind")
    return found
