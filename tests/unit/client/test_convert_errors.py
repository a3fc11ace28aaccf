"""Manifests that cannot be converted: what is wrong is named by its field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from elasticjob_client.convert.shape import SHAPES, check
from elasticjob_client.errors import ClientError

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{kind: List, items: 5}", "items of the List is 5: expected a list"),
        ("{kind: List, items: [5]}", "items[0] is no Kubernetes object: expected one with a kind"),
        ("{kind: List, items: [{a: 1}]}", "items[0] is no Kubernetes object: expected one with a kind"),
        ("[" * 5000, "is nested too deeply to be a manifest"),
        ("a: 2026-13-45", "is not YAML: month must be in 1..12"),
        ("just text", "is no Kubernetes object: expected one with a kind"),
        (
            "{kind: PyTorchJob, metadata: foo}",
            "a PyTorchJob without a name cannot be converted: metadata is 'foo': expected an object",
        ),
        (
            "{kind: PyTorchJob, metadata: {name: a}, spec: foo}",
            "PyTorchJob a cannot be converted: spec is 'foo'",
        ),
        (
            "{kind: PyTorchJob, spec: {pytorchReplicaSpecs: {Worker: {replicas: two}}}}",
            "spec.pytorchReplicaSpecs.Worker.replicas is 'two': expected a whole number",
        ),
        (
            "{kind: PyTorchJob, spec: {pytorchReplicaSpecs: [1]}}",
            "spec.pytorchReplicaSpecs is [1]: expected an object",
        ),
        (
            "{kind: PyTorchJob, spec: {pytorchReplicaSpecs: {Worker: {template: {spec: {containers: "
            "[{env: [{value: a}]}]}}}}}}",
            "Worker.template.spec.containers[0].env[0] has no name: expected one",
        ),
        ("{kind: TrainJob, spec: {runtimeRef: [1]}}", "spec.runtimeRef is [1]: expected an object"),
        (
            "{kind: TrainJob, spec: {trainer: {numProcPerNode: true}}}",
            "is True: expected a whole number or text",
        ),
        ("{kind: TrainingRuntime, metadata: {name: 5}}", "metadata.name is 5: expected text"),
        (
            "{kind: PyTorchJob, metadata: null, spec: null}",
            "a PyTorchJob without a name cannot be converted: '' cannot be the name of a new job",
        ),
    ],
)
def test_errors_name_the_field(run: Run, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    error = run("convert", str(file)).exception
    assert isinstance(error, ClientError), error
    assert said in str(error)
    assert len(str(error)) < 300


def test_a_file_that_is_no_text(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"kind: \xff\xfe")
    error = run("convert", str(file)).exception
    assert isinstance(error, ClientError), error
    assert "job.yaml is not text in UTF-8" in str(error)


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parent / "kubeflow").glob("*.yaml")), ids=lambda f: f.name
)
def test_kubeflows_own_manifests_have_the_shape(file: Path) -> None:
    for body in yaml.safe_load_all(file.read_text()):
        check(body, SHAPES[body["kind"]])
