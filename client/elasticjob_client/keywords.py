"""What a program asks for when it runs a job, checked before it goes into a manifest: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticjob_client import names
from elasticjob_client.text import is_utf8

READ_ONLY = ":ro"
_COUNTS = {"replicas": 1, "minimum": 1, "maximum": 1, "spares": 0, "gpus": 0, "max_restarts": 0}
"""Fields that are numbers, and the smallest."""
_OPTIONAL = ("minimum", "maximum", "spares", "max_restarts")


def checked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``manifest.Run`` as it wants them. Raises TypeError or ValueError with what is expected.

    Numbers are taken as text where that is natural.
    """
    found = dict(asked)
    for name, least in _COUNTS.items():
        if name not in found or (found[name] is None and name in _OPTIONAL):
            continue
        if isinstance(found[name], bool) or not isinstance(found[name], int):
            raise TypeError(f"{name} is {found[name]!r}: expected a number")
        if found[name] < least:
            raise ValueError(f"{name} is {found[name]}: expected {least} or more")
    if found.get("nproc_per_node") is not None:
        found["nproc_per_node"] = word("nproc_per_node", found["nproc_per_node"])
    elif "nproc_per_node" in found:
        found["nproc_per_node"] = ""
    if "cpu" in found:
        found["cpu"] = word("cpu", found["cpu"] if found["cpu"] is not None else "")
    if "memory" in found:
        if not isinstance(found["memory"], str):
            raise TypeError(f'memory is {found["memory"]!r}: expected text with a unit, such as "64Gi"')
        _check_utf8("memory", found["memory"])
    if "environment" in found:
        expected = 'expected a dict of names and values: {"CHECKPOINTS": "/checkpoints"}'
        found["environment"] = _texts("environment", found["environment"], expected)
    if "volumes" in found:
        expected = (
            'expected a dict of mount paths and claims: {"/checkpoints": "my-claim", "/data": "other:ro"}'
        )
        found["volumes"] = _texts("volumes", found["volumes"], expected)
        for path, claim in found["volumes"].items():
            if not path.startswith("/") or ":" in path or not names.is_name("a claim", mounted(claim)[0]):
                raise ValueError(f"volumes has {path!r}: {claim!r}: {expected}")
    return found


def mounted(claim: str) -> tuple[str, bool]:
    """The name of a claim, and whether it is mounted to be read only: what ``:ro`` behind the name says."""
    return claim.removesuffix(READ_ONLY), claim.endswith(READ_ONLY)


def words(arguments: Any) -> tuple[str, ...]:
    """Arguments of a script. Raises TypeError for what is neither text nor a number."""
    if not isinstance(arguments, Sequence) or isinstance(arguments, (str, bytes)):
        raise ValueError(
            f"a script's arguments are words: expected a list, and what is given {kind_of(arguments)}"
        )
    return tuple(word("an argument", one) for one in arguments)


def kind_of(found: Any) -> str:
    """What something is, without its value, which may be a secret: "is None", "is of type list"."""
    return "is None" if found is None else f"is of type {type(found).__name__}"


def job_name_of(body: Any) -> str:
    """The job's name, or the beginning of one that the server makes up. Raises ValueError without any."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    found = metadata if isinstance(metadata, dict) else {}
    if not found.get("name") and isinstance(found.get("generateName"), str) and found["generateName"]:
        return f"{found['generateName']}..."
    if "name" not in found:
        found_one = "one without" if isinstance(body, dict) else f"what {kind_of(body)}"
        raise ValueError(f"expected an ElasticJob with metadata.name, found {found_one}")
    names.check_name("a job", found["name"])
    return str(found["name"])


def word(what: str, found: Any) -> str:
    """Text, or a number as text. Raises TypeError for everything else."""
    if isinstance(found, bool) or not isinstance(found, (str, int, float)):
        raise TypeError(f"{what} {kind_of(found)}: expected text or a number")
    _check_utf8(what, str(found))
    return str(found)


def text(what: str, found: Any) -> str:
    """Text that is not empty. Raises TypeError or ValueError for everything else."""
    if not isinstance(found, str):
        raise TypeError(f"{what} is {found!r}: expected text")
    if not found.strip():
        raise ValueError(f"{what} is empty")
    _check_utf8(what, found)
    return found


def _check_utf8(what: str, found: str) -> None:
    if not is_utf8(found):
        raise ValueError(f"{what} has bytes that are not UTF-8")


def _texts(what: str, found: Any, expected: str) -> dict[str, str]:
    if not isinstance(found, Mapping):
        raise TypeError(f"{what} {kind_of(found)}: {expected}")
    if wrong := [key for key in found if not isinstance(key, str) or not key]:
        raise TypeError(f"{what} has the key {wrong[0]!r}: {expected}")
    for key in found:
        _check_utf8(what, key)
    return {key: word(f"{what}[{key!r}]", value) for key, value in found.items()}
