"""Turns a script into what is applied: a ConfigMap with the code, and the job that mounts it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from elasticjob.contract.names import GROUP, MAX_JOB_NAME_LENGTH
from elasticjob_client.digits import whole
from elasticjob_client.keywords import mounted
from elasticjob_client.resource import ElasticJob, FailurePolicy, Limit, Metadata, Spec
from elasticjob_client.text import is_utf8

CODE = "/code"
"""The mount path of the code."""
MAX_BYTES = 1_000_000
"""What a ConfigMap holds: 1 MiB with names and base64, less a reserve."""
SHARED_MEMORY = "/dev/shm"
"""Where PyTorch's data loaders and NCCL exchange data. Without a volume, a container has 64 MB there."""
GPU = "nvidia.com/gpu"
CODE_LABEL = f"{GROUP}/code-of"
"""A ConfigMap's label: the job for which it was made."""
_SKIPPED = {"__pycache__", "node_modules", "venv"}
_KEY = re.compile(r"[-._a-zA-Z0-9]+")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. ``script``: relative to the code's directory. ``volumes``: mount path to claim name,
    which ends with ``:ro`` if it is only read. ``gpus``, ``cpu`` and ``memory`` are for each pod.
    ``max_restarts``: restarts after failures of the script, over the job's whole life; if it is None, 5
    within an hour."""

    name: str
    image: str
    script: str
    arguments: Sequence[str] = ()
    replicas: int = 1
    minimum: int | None = None
    maximum: int | None = None
    spares: int | None = None
    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    nproc_per_node: str = ""
    environment: Mapping[str, str] = {}
    volumes: Mapping[str, str] = {}
    max_restarts: int | None = None


def read(script: Path, directory: Path | None) -> dict[str, bytes]:
    """The files to pack, by their paths below the directory: the script alone if no directory is given.

    Left out: what is hidden, what tools leave, and what ``skipped`` names. Raises ValueError if something is
    missing or too large, or if a link leads out of the directory, and UnicodeError of a name in other bytes
    than UTF-8.
    """
    if not script.is_file():
        raise ValueError(f"there is no file {script}")
    if directory is None:
        files = {script.name: script.read_bytes()}
    else:
        if not script.resolve().is_relative_to(directory.resolve()):
            raise ValueError(
                f"{script} is not in the directory {directory}: --code must be one that contains the script"
            )
        found = _below(directory)
        if away := [path for path in found if not path.resolve().is_relative_to(directory.resolve())]:
            links = ", ".join(f"{path} -> {path.resolve()}" for path in away[:5])
            raise ValueError(
                f"links lead out of the directory {directory}: {links}. Expected all code below it: replace "
                "them by copies, or delete them"
            )
        files = {
            path.relative_to(directory).as_posix(): path.read_bytes() for path in found if path.is_file()
        }
    if odd := [name for name in files if not is_utf8(name)]:
        raise UnicodeError(f"the name of the file {odd[0]!r} has bytes that are not UTF-8: rename it")
    check_size(files)
    return files


def skipped(directory: Path) -> list[str]:
    """What is in the directory and is not packed though it may be code, each with the reason."""
    return [
        f"{path}: {'a link to a directory' if path.is_dir() else 'a link to nothing, or no regular file'}"
        for path in _below(directory)
        if not path.is_file()
    ]


def _below(directory: Path) -> list[Path]:
    """Files and links, also those to directories; without what is hidden, and what tools leave."""
    found = []
    for path in sorted(directory.rglob("*")):
        below = path.relative_to(directory)
        hidden = any(part.startswith(".") or part in _SKIPPED for part in below.parts)
        if (path.is_symlink() or not path.is_dir()) and not hidden and path.suffix != ".pyc":
            found.append(path)
    return found


def packed(script: Path, directory: Path | None) -> tuple[str, dict[str, bytes]]:
    """The script's path in the code, and the files to pack. Raises ValueError as ``read`` does."""
    files = read(script, directory)
    return script.resolve().relative_to(directory.resolve()).as_posix() if directory else script.name, files


def check_size(files: Mapping[str, bytes]) -> None:
    """Raises ValueError if a ConfigMap cannot hold them, with the largest files and what to do."""
    total = sum(_size(content) for content in files.values())
    if total <= MAX_BYTES:
        return
    largest = sorted(files, key=lambda name: -len(files[name]))[:3]
    named = ", ".join(f"{name} ({len(files[name]):,} bytes)" for name in largest)
    raise ValueError(
        f"the code has {total:,} bytes, and a ConfigMap holds {MAX_BYTES:,}; the largest files: {named}. "
        "Put the code into the image, or on a volume (--volume CLAIM:/path), and name the script by its path "
        "there, with --in-image."
    )


def _size(content: bytes) -> int:
    return len(content) if _is_text(content) else (len(content) + 2) // 3 * 4


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def name_of(script: str, suffix: str) -> str:
    """A job's name, made of the script's and something that tells runs apart."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")
    stem = stem if stem[:1].isalpha() else f"job-{stem}".strip("-")
    return f"{stem[: MAX_JOB_NAME_LENGTH - len(suffix) - 1].strip('-')}-{suffix}"


def code_name(job: str) -> str:
    """The ConfigMap's name."""
    return f"{job}-code"


def keys(files: Mapping[str, bytes]) -> dict[str, str]:
    """A key of the ConfigMap for each path; keys have no "/", so the volume gives the paths back."""
    found: dict[str, str] = {}
    for number, path in enumerate(files):
        key = path.replace("/", "__")
        found[path] = key if _KEY.fullmatch(key) and key not in found.values() else f"file-{number}"
    return found


def config_map(job: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The code. What is not text is kept as it is, in base64."""
    named = keys(files)
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": code_name(job), "labels": {CODE_LABEL: job}},
    }
    text = {named[path]: content.decode() for path, content in files.items() if _is_text(content)}
    rest = {named[path]: base64.b64encode(c).decode() for path, c in files.items() if not _is_text(c)}
    return {**body, **({"data": text} if text else {}), **({"binaryData": rest} if rest else {})}


def elastic_job(run: Run, files: Mapping[str, bytes]) -> ElasticJob:
    """The job. Without files, the script is in the image or on a volume, under the path that is given.

    Memory is mounted at /dev/shm unless one of the run's volumes is.
    """
    script = f"{CODE}/{run.script}" if files else run.script
    container: dict[str, Any] = {
        "name": "train",
        "image": run.image,
        "command": ["torchrun", script, *run.arguments],
    }
    if run.environment:
        container["env"] = [{"name": name, "value": value} for name, value in run.environment.items()]
    asked = {**({"cpu": run.cpu} if run.cpu else {}), **({"memory": run.memory} if run.memory else {})}
    if asked or run.gpus:
        container["resources"] = {"requests": asked} if asked else {}
        if run.gpus:
            container["resources"]["limits"] = {GPU: run.gpus}
    mounts, volumes = [], []
    if files:
        named = keys(files)
        items = [{"key": key, "path": path} for path, key in named.items()]
        mounts.append({"name": "code", "mountPath": CODE, "readOnly": True})
        volumes.append({"name": "code", "configMap": {"name": code_name(run.name), "items": items}})
    for number, (path, value) in enumerate(run.volumes.items()):
        claim, read_only = mounted(value)
        mount: dict[str, Any] = {"name": f"volume-{number}", "mountPath": path}
        mounts.append({**mount, "readOnly": True} if read_only else mount)
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
    if SHARED_MEMORY not in (path.rstrip("/") for path in run.volumes):
        mounts.append({"name": "shm", "mountPath": SHARED_MEMORY})
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    container["volumeMounts"] = mounts
    policy, workers = None, whole(run.nproc_per_node)
    if run.max_restarts is not None:
        policy = FailurePolicy(application=Limit(max_restarts=run.max_restarts))
    return ElasticJob(
        metadata=Metadata(name=run.name),
        spec=Spec(
            replicas=run.replicas,
            min_replicas=run.minimum,
            max_replicas=run.maximum,
            spares=run.spares,
            nproc_per_node=run.nproc_per_node or None if workers is None else workers,
            failure_policy=policy,
            template={"spec": {"containers": [container], "volumes": volumes}},
        ),
    )
