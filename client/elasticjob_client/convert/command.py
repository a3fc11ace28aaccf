"""The command of a training container, as plain torchrun without the flags that the operator sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import msgspec

from elasticjob_client.convert.limits import PROCESSES
from elasticjob_client.digits import whole
from elasticjob_client.explain.status import PLAIN_TORCHRUN

_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
_SHELLS = ("sh", "bash", "dash", "ash")
_SET = {
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--nproc-per-node",
    "--max-restarts",
    "--local-addr",
}
"""Options with a value that the operator sets."""
_ALONE = {"--standalone"}
"""Options without a value that the operator sets."""
_KEPT_ALONE = {"-m", "--module", "--no-python", "--run-path", "--virtual-local-rank"}
_FIELDS = {
    "--nproc-per-node": (re.compile(rf"\d+|{'|'.join(PROCESSES)}"), "spec.nprocPerNode"),
    "--max-restarts": (re.compile(r"\d+"), "spec.failurePolicy.application.maxRestarts"),
    "--nnodes": (re.compile(r"\d+(:\d+)?"), "spec.replicas, or spec.minReplicas and spec.maxReplicas"),
}
"""How the values are read that belong into the job's spec, and where they belong."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """``command`` and ``arguments`` of the container; what its flags said belongs into the job's spec."""

    command: list[str]
    arguments: list[str] = []
    nproc_per_node: int | str | None = None
    max_restarts: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    notes: list[str] = []


def rewritten(command: Sequence[str], arguments: Sequence[str]) -> Command:
    """Python and torchrun become torchrun; any other command stays as it is, with a note."""
    words = [*command, *arguments]
    if not command:
        return _kept(command, arguments, f"the image's own command starts: {PLAIN_TORCHRUN}")
    program = PurePosixPath(words[0]).name
    if program == "torchrun":
        return _launched(words[1:])
    if _PYTHON.fullmatch(program):
        rest = [word for at, word in enumerate(words[1:]) if not (word == "-u" and at == 0)]
        if rest[:1] == ["-m"] and rest[1:2] and rest[1] in _LAUNCHERS:
            return _launched(rest[2:])
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            script = rest[:2] if rest[0] == "-m" else rest[:1]
            note = f"the command was `{' '.join(words[:3])}`: torchrun starts the script now"
            return Command(command=["torchrun", *script], arguments=rest[len(script) :], notes=[note])
    if program in _SHELLS:
        return _kept(command, arguments, f"the command is a shell script: in it, {PLAIN_TORCHRUN}")
    return _kept(command, arguments, f"the command starts with {words[0]!r}: {PLAIN_TORCHRUN}")


def _kept(command: Sequence[str], arguments: Sequence[str], note: str) -> Command:
    return Command(command=list(command), arguments=list(arguments), notes=[note])


def _launched(words: Sequence[str]) -> Command:
    """torchrun's own flags come before the script."""
    flags: list[str] = []
    said: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in _ALONE:
            said[name] = ""
        elif name in _KEPT_ALONE:
            flags.append(word)
        elif name in _SET:
            said[name] = value if equals else rest.pop(0) if rest else ""
        else:
            flags += [word] if equals or not rest else [word, rest.pop(0)]
    minimum, maximum = _nodes(said.get("--nnodes", ""))
    restarts = said.get("--max-restarts", "")
    unread = [
        name for name, value in said.items() if name in _FIELDS and not _FIELDS[name][0].fullmatch(value)
    ]
    notes = []
    if read := [name for name in said if name not in unread]:
        notes.append(f"torchrun's {', '.join(read)}: left out of the command; the operator sets them")
    notes += [
        f"torchrun's {name} is {said[name]!r}, which cannot be read here: left out; set "
        f"{_FIELDS[name][1]} yourself"
        for name in unread
    ]
    return Command(
        command=["torchrun", *flags, *rest[:1]],
        arguments=rest[1:],
        nproc_per_node=_number(said.get("--nproc-per-node", "")),
        max_restarts=whole(restarts),
        minimum=minimum,
        maximum=maximum,
        notes=notes,
    )


def _nodes(value: str) -> tuple[int | None, int | None]:
    low, colon, high = value.partition(":")
    least, most = whole(low), whole(high)
    return (None, None) if not colon or least is None or most is None else (least, most)


def _number(value: str) -> int | str | None:
    if value in PROCESSES:
        return value
    return whole(value)
