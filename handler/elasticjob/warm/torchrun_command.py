"""Predicts what torchrun will start, from its command line and environment, before it has read them. Pure.

An option that is not known here, or that changes how workers are started, gives None: then no interpreter is
made early.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elasticjob.contract.names import BACKEND, WARM_ENV, WARM_IMPORTS_ENV
from elasticjob.warm.eligibility import Start, mismatch

MODULES = ("torch.distributed.run", "elasticjob.run")
PROGRAM = "torchrun"
PYTHON_FLAGS = ("-u", "-B")
MODULE_OPTIONS = ("-m", "--module")
SHORT = {"-r": "redirects", "-t": "tee"}
WITH_VALUE = frozenset(
    {
        "nnodes",
        "nproc-per-node",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "max-restarts",
        "monitor-interval",
        "start-method",
        "event-log-handler",
        "role",
        "log-dir",
        "redirects",
        "tee",
        "log-line-prefix-template",
        "local-ranks-filter",
        "node-rank",
        "master-addr",
        "master-port",
        "local-addr",
        "signals-to-handle",
        "shutdown-timeout",
    }
)
UNKNOWN_VARIABLES = (
    "PYTHON_EXEC",
    "PET_STANDALONE",
    "PET_MODULE",
    "PET_NO_PYTHON",
    "PET_RUN_PATH",
    "PET_NUMA_BINDING",
    "PET_LOGS_SPECS",
    "PET_VIRTUAL_LOCAL_RANK",
)
"""torchrun starts its workers in another way if one of these is set."""
UNSET = ("", "0")
"""The operator sets PET_STANDALONE to 0, so that an image or a ConfigMap cannot set it."""
LOCAL_RANK_MACRO = "${local_rank}"
SET_LATER = "TORCHELASTIC_"
"""Beginning of variables that torchrun adds to its own environment. No import of torch reads them."""


@dataclass(frozen=True)
class Workers:
    """``args`` follow the interpreter; LOCAL_RANK_MACRO in them stands for the worker's local rank."""

    args: tuple[str, ...]
    number: int
    imports: tuple[str, ...] = ()
    """The modules that ``warm_imports`` names."""

    def of(self, local_rank: int) -> tuple[str, ...]:
        """The arguments of the interpreter in the command of this worker."""
        return tuple(one.replace(LOCAL_RANK_MACRO, str(local_rank)) for one in self.args)


def torchruns_own(command: Sequence[str]) -> Sequence[str] | None:
    """The arguments of torchrun in a process's command (``sys.orig_argv``); None if that is another
    program."""
    rest = list(command[1:])
    while rest and rest[0] in PYTHON_FLAGS:
        rest.pop(0)
    if len(rest) > 1 and rest[0] == "-m" and rest[1] in MODULES:
        return rest[2:]
    if rest and os.path.basename(rest[0]) == PROGRAM:
        return rest[1:]
    return None


def workers(args: Sequence[str], environ: Mapping[str, str]) -> Workers | None:
    """The workers of a torchrun with these arguments; None unless it has our backend and warm workers."""
    if any(environ.get(name, "") not in UNSET for name in UNKNOWN_VARIABLES):
        return None
    found = _options(args)
    if found is None:
        return None
    given, module, script = found

    def value(name: str, default: str = "") -> str:
        return given.get(name, environ.get(f"PET_{name.replace('-', '_').upper()}", default))

    conf = _conf(value("rdzv-conf"))
    nproc = value("nproc-per-node", "1")
    if value("rdzv-backend") != BACKEND or (conf.get("warm") or environ.get(WARM_ENV)) != "on":
        return None
    if not (nproc.isascii() and nproc.isdigit() and len(nproc) < 10 and int(nproc) > 0):
        return None  # auto, gpu: torch counts
    if any("$" in word.replace(LOCAL_RANK_MACRO, "") for word in script):
        return None  # only torch can substitute it
    named = conf.get("warm_imports") or environ.get(WARM_IMPORTS_ENV, "")
    more = tuple(name for name in named.split(":") if name)
    return Workers(("-u", *(["-m"] if module else []), *script), int(nproc), more)


def environment(environ: Mapping[str, str], number: int) -> dict[str, str]:
    """The environment that the workers inherit, with what torchrun and the handler add to it."""
    added = {"PYTHONFAULTHANDLER": "1", **({"OMP_NUM_THREADS": "1"} if number > 1 else {})}
    return {**added, **environ}


def serves(made: Start, wanted: Start) -> bool:
    """Whether an interpreter that was made early for ``made`` can be used for ``wanted``."""
    later = {
        name: value
        for name, value in wanted.env.items()
        if name not in made.env and name.startswith(SET_LATER)
    }
    return not mismatch(Start(made.args, {**made.env, **later}, made.cwd), wanted)


def _options(args: Sequence[str]) -> tuple[dict[str, str], bool, list[str]] | None:
    """torchrun's options with their values, whether the script is a module, the script and its arguments."""
    given: dict[str, str] = {}
    module, rest = False, list(args)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in MODULE_OPTIONS:
            module = True
            continue
        name, equals, text = word.partition("=")
        name = SHORT.get(name) or (name[2:].replace("_", "-") if name.startswith("--") else "")
        if name not in WITH_VALUE:
            return None
        if not equals:
            if not rest or rest[0].startswith("-"):
                return None
            text = rest.pop(0)
        given[name] = text
    return (given, module, rest) if rest else None


def _conf(text: str) -> dict[str, str]:
    """``--rdzv-conf``: ``key=value,key=value``."""
    pairs = (one.strip().partition("=") for one in text.split(","))
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}
