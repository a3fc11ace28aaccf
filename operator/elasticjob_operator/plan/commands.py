"""What the template's command shows of why its pods do not join: flags, or another program than torchrun."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticjob.contract.names import BACKEND
from elasticjob.contract.text import one_line
from elasticjob_operator.plan.containers import training_container
from elasticjob_operator.plan.model import Job

MAX_RESTARTS = "1000000"
"""torchrun's own count is set out of the way; the job's accounts decide."""

KEPT_APART = ("--standalone", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id")
"""Flags of torchrun with which a pod takes no part in the job's rounds, unless they say what the operator
says. ``--rdzv-conf`` is allowed."""

_FLAGS = f"{', '.join(KEPT_APART[:-1])} or {KEPT_APART[-1]}"

NEEDED = f"torchrun without {_FLAGS}"

MUST = (
    f"its command must run torchrun: plain python, or torchrun with {_FLAGS}, trains alone in each pod; "
    "delete the job, and apply it again with torchrun and none of these flags"
)
"""What to do if a pod has ended well and never joined, and the template does not show why."""

MAX_WORD = 100

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")


def environment(job: Job) -> dict[str, str]:
    """What torchrun is told in every pod."""
    most = job.spec.replicas if job.spec.max_replicas is None else job.spec.max_replicas
    return {
        "PET_RDZV_BACKEND": BACKEND,
        "PET_RDZV_ENDPOINT": f"{job.namespace}/{job.name}",
        "PET_RDZV_ID": job.uid,
        "PET_NNODES": f"1:{most}",
        "PET_MAX_RESTARTS": MAX_RESTARTS,
    }


def overriding(job: Job, container: Mapping[str, Any]) -> list[str]:
    """The flags of the command, as they are written there, that override this environment.

    Only words before the script count: what follows ``train.py`` are the script's own arguments. A flag with
    the value that the environment has anyway does no harm; `accelerate launch` needs two such flags.
    """
    same = {_flag_of(name): value for name, value in environment(job).items()}
    flags = {*same, *KEPT_APART}
    found = []
    for word, following in itertools.pairwise([*_words(_command(container)), ""]):
        if word.endswith(".py"):
            break
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        if flag in flags and (value if equals else following) != same.get(flag):
            found.append(word)
    return list(dict.fromkeys(found))


def why_apart(job: Job) -> str:
    """Why a pod that runs this command takes no part in rounds, if the template shows it for certain."""
    template = job.spec.template or {}
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    name = training_container(meta, spec)
    there = spec.get("containers")
    containers = [c for c in there if isinstance(c, Mapping)] if isinstance(there, list) else []
    container: Mapping[str, Any] = next((c for c in containers if c.get("name") == name), {})
    words = overriding(job, container)
    flags = [one_line(w, MAX_WORD) for w in words if w.partition("=")[0].replace("_", "-") in KEPT_APART]
    if flags:
        many = len(flags) > 1
        effect = (
            "so each pod trains alone"
            if "--standalone" in flags
            else f"which override{'s' * (not many)} what the operator sets"
        )
        them = "them" if many else "it"
        return (
            f"its command has the flag{'s' * many} {', '.join(flags)}, {effect}: delete the job, and apply "
            f"it again without {them}"
        )
    command = _command(container) if container.get("command") else []  # else it is the image's
    if command and _PYTHON.fullmatch(command[0]) and _runs_script(command[1:]):
        runs = one_line(command[0], MAX_WORD)
        return (
            f"its command runs {runs}, not torchrun. If the script does not start torchrun itself, each pod "
            "trains alone: delete the job, and apply it again with torchrun instead"
        )
    return ""


def _runs_script(arguments: Iterable[str]) -> bool:
    """Whether the first argument of an interpreter that is no option is a script; modules may be anything."""
    for word in arguments:
        if not word.startswith("-"):
            return word.endswith(".py")
        if word not in ("-u", "-B", "-O", "-s", "-E", "-I"):
            return False
    return False


def _command(container: Mapping[str, Any]) -> list[str]:
    parts = (container.get("command"), container.get("args"))
    return [str(word) for part in parts if isinstance(part, list) for word in part]


def _words(command: Iterable[str]) -> Iterator[str]:
    """The words of a command, also of a line handed to a shell."""
    for part in command:
        yield from part.split()


def _flag_of(variable: str) -> str:
    """torchrun's flag for one of its environment variables: --rdzv-backend for PET_RDZV_BACKEND."""
    return "--" + variable.removeprefix("PET_").lower().replace("_", "-")
