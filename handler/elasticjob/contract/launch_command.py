"""Whether a container's command starts torchrun so that its pod takes part in the job's rounds. Pure.

The operator and ``elasticjob doctor`` both ask this module.

torchrun takes a setting from a flag, or else from a variable ``PET_*``. The operator sets these variables
(``environment``), and replaces what a template or an image has set. A command can still override them, by a
flag, or by a shell that sets the variable.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from elasticjob.contract.names import BACKEND

MAX_RESTARTS = "1000000"
"""torchrun's own count is set out of the way; the job's accounts decide."""

KEPT_APART = ("--standalone", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id")
"""Flags of torchrun with which a pod takes no part in the job's rounds, unless they say what the operator
says. ``--rdzv-conf`` is allowed."""

KEPT_APART_LISTED = f"{', '.join(KEPT_APART[:-1])} or {KEPT_APART[-1]}"
"""The same as part of a sentence."""

MOST_WORDS, LONGEST_WORD = 1_000, 16_000
"""Words of a command, and letters of a word, such as a script, that are looked at: a tenant's command must
not keep the operator busy."""

Kind = Literal["joins", "alone", "overridden", "python", "ranks", "isolated", "path", "unknown", "image"]

_FLAGS = frozenset({"standalone", "module", "no-python", "run-path", "virtual-local-rank", "use-env", "help"})
"""torchrun's options that take no value."""
_WITH_VALUE = frozenset(
    {
        *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
        *("max-restarts", "monitor-interval", "start-method", "event-log-handler", "role", "log-dir"),
        *("redirects", "tee", "log-line-prefix-template", "local-ranks-filter", "node-rank"),
        *("duplicate-stdout-filters", "duplicate-stderr-filters", "master-addr", "master-port"),
        *("local-addr", "logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
        "print-completion",
    }
)
_OPTIONS = _FLAGS | _WITH_VALUE
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee", "-h": "help"}
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "elasticjob.run")
_RANKS = ("deepspeed", "mpirun", "mpiexec", "srun")
"""Programs that start a fixed number of ranks themselves."""
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
_PYTHON = re.compile(r"python[\d.]*")
_PYTHON_OPTIONS = ("-u", "-B", "-O", "-OO", "-s", "-E", "-I")
_ISOLATED = ("-I", "-E")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|\((\w+)\)|(\w+))")
_SUBSTITUTION = re.compile(r"\$\([^()]*\)|`[^`]*`")
_REDIRECTION = re.compile(r"(?<!\d)\d*>&\d*|&>>?")
_SCRIPT_OPTION = re.compile(r"-[abd-z]*c[a-z]*")
"""A shell's ``-c``, also among others. Before the c there is no other: nothing to try twice."""
_SEPARATORS = ";&|()\n"
_KEEPS_PATH = re.compile(r"\$\{?PYTHONPATH")


@dataclass(frozen=True)
class Setting:
    """One of torchrun's settings as a command has it: ``written`` there as a flag, as ``PET_NNODES=1`` or as
    ``unset PET_NNODES``. ``value`` is empty where none is left."""

    option: str
    value: str
    written: str


@dataclass(frozen=True)
class Judgement:
    """``joins``: a torchrun that takes part, as far as the command shows it. ``alone`` and ``overridden``: no
    torchrun in it does, because of ``overriding``, by ``--standalone`` or by something else. ``python``,
    ``ranks`` and ``isolated``: the program ``runs`` is no torchrun, starts ranks itself, or does not find the
    handler. ``path``: neither does Python, because PYTHONPATH is replaced. ``image``: there is no command.
    """

    kind: Kind
    overriding: tuple[Setting, ...] = ()
    runs: str = ""
    settings: tuple[Setting, ...] = ()
    """All of torchrun's settings that the command has."""

    def has(self, option: str) -> bool:
        """Whether the command has this option, such as ``nproc-per-node``."""
        return any(setting.option == option for setting in self.settings)


@dataclass
class _Launch:
    """One torchrun in a command."""

    settings: list[Setting] = field(default_factory=list)
    isolated: str = ""
    path_replaced: bool = False

    def backend(self, environ: Mapping[str, str]) -> bool:
        """Whether it says itself which backend it uses, and it is ours."""
        return any(one.option == "rdzv-backend" and not _overrides(one, environ) for one in self.settings)


def environment(endpoint: str, run_id: str, most_nodes: int) -> dict[str, str]:
    """The settings of torchrun in every pod; they replace those of the template and the image.

    The backend ignores torch's bounds. A minimum of 1 lets a command that uses another backend by mistake
    come to its end, and so to the reason NeverJoined, instead of waiting there for others.
    """
    return {
        "PET_RDZV_BACKEND": BACKEND,
        "PET_RDZV_ENDPOINT": endpoint,
        "PET_RDZV_ID": run_id,
        "PET_NNODES": f"1:{most_nodes}",
        "PET_MAX_RESTARTS": MAX_RESTARTS,
        "PET_STANDALONE": "0",
    }


def judge(
    command: Sequence[str], args: Sequence[str], environ: Mapping[str, str], injected: bool = True
) -> Judgement:
    """Judge the ``command`` and ``args`` of a container with this ``environment``. ``injected``: the handler
    comes by PYTHONPATH; otherwise it is in the image.

    A command with several torchruns is right if one of them takes part: others may run beside training. What
    is not looked at (MOST_WORDS, LONGEST_WORD) might be what takes part.
    """
    whole = [*command, *args]
    words = [word[:LONGEST_WORD] for word in whole[:MOST_WORDS]]
    judged = _judge_words(command, words, environ, injected)
    return judged if words == whole or judged.kind == "joins" else Judgement("unknown", runs=judged.runs)


def _judge_words(
    command: Sequence[str], words: Sequence[str], environ: Mapping[str, str], injected: bool
) -> Judgement:
    launches = list(_launches(words, environ))
    if not launches and not command and words and words[0].startswith("-"):
        launches = [_Launch(_options(words, environ))]  # the image's own command may be torchrun
    if not command and not launches:
        return Judgement("image")
    if not launches and (launch := _accelerate(words, environ)):
        one = _judge(launch, environ, injected, tuple(launch.settings))
        known = one.kind != "joins" or launch.backend(environ)
        return one if known else Judgement("unknown", one.overriding, words[0], one.settings)
    settings = tuple(setting for launch in launches for setting in launch.settings)
    judged = [_judge(launch, environ, injected, settings) for launch in launches]
    return next((one for one in judged if one.kind == "joins"), None) or (
        judged[0] if judged else _without_torchrun(words)
    )


def _judge(
    launch: _Launch, environ: Mapping[str, str], injected: bool, settings: tuple[Setting, ...]
) -> Judgement:
    found = tuple(dict.fromkeys(one for one in launch.settings if _overrides(one, environ)))
    if any(f"--{one.option}" in KEPT_APART for one in found):
        alone = any(one.option == "standalone" for one in found)
        return Judgement("alone" if alone else "overridden", found, settings=settings)
    if injected and launch.isolated:
        return Judgement("isolated", found, launch.isolated, settings)
    if injected and launch.path_replaced:
        return Judgement("path", found, settings=settings)
    return Judgement("joins", found, settings=settings)


def _overrides(setting: Setting, environ: Mapping[str, str]) -> bool:
    ours = environ.get(_variable(setting.option))
    if ours is None:
        return False
    if setting.option == "standalone":
        return setting.value.strip("0 ") != ""
    if setting.option == "rdzv-endpoint" and setting.value == ours.rpartition("/")[2]:
        return False  # without a namespace it is the pod's own
    return setting.value != ours


def _variable(option: str) -> str:
    return "PET_" + option.upper().replace("-", "_")


def _launches(words: Sequence[str], environ: Mapping[str, str]) -> Iterator[_Launch]:
    """Each torchrun that the words start."""
    shell, rest = _shell(words)
    if shell is None:
        yield from filter(None, [_launch(words, environ, {}, False)])
        return
    exported: dict[str, Setting] = {}
    replaced = False
    for simple in [*_simple_commands(shell), *([rest] if "$@" in shell else [])]:
        assigned, others = _assignments(simple)
        replaces = any(name == "PYTHONPATH" and not _KEEPS_PATH.search(value) for name, value, _ in assigned)
        here = {
            name: Setting(_option_of(name), _resolved(value, environ), written)
            for name, value, written in assigned
            if _is_setting(name)
        }
        if launch := _launch(others, environ, {**exported, **here}, replaced or replaces):
            yield launch
        elif not others or others[0] in ("export", "unset"):
            exported.update(here)
            replaced = replaced or replaces


def _launch(
    words: Sequence[str], environ: Mapping[str, str], variables: Mapping[str, Setting], path_replaced: bool
) -> _Launch | None:
    """The torchrun that these words start, also behind ``env``, ``exec`` and other programs; None without."""
    for at, word in enumerate(words):
        module = at > 0 and words[at - 1] == "-m" and word in _LAUNCHERS
        if not module and PurePosixPath(word).name != "torchrun":
            continue
        before = words[: at - 1] if module else words[:at]
        given = dict(variables)
        for one in before:
            found = _ASSIGNMENT.fullmatch(one)  # env PET_NNODES=1 torchrun
            if found and _is_setting(found[1]):
                given[found[1]] = Setting(_option_of(found[1]), _resolved(found[2], environ), one)
            elif found and found[1] == "PYTHONPATH" and not _KEEPS_PATH.search(found[2]):
                path_replaced = True
        python = next((n for n, one in enumerate(before) if _PYTHON.fullmatch(PurePosixPath(one).name)), at)
        isolated = next((f"{before[python]} {one}" for one in before[python:] if one in _ISOLATED), "")
        flags = _options(words[at + 1 :], environ)
        named = {one.option for one in flags}
        return _Launch(
            [*(one for one in given.values() if one.option not in named), *flags], isolated, path_replaced
        )
    return None


def _options(words: Sequence[str], environ: Mapping[str, str]) -> list[Setting]:
    """torchrun's own options: those before the script, whose arguments are its own."""
    found: dict[str, Setting] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        option = _SHORT.get(name) or _full(name[2:].replace("_", "-") if name.startswith("--") else "")
        if option in _FLAGS:
            value = "1"
        elif option in _WITH_VALUE and not equals and rest:
            value = rest.pop(0)
        if option:
            found[option] = Setting(option, _resolved(value, environ), word)  # the last counts
    return list(found.values())


def _accelerate(words: Sequence[str], environ: Mapping[str, str]) -> _Launch | None:
    """What `accelerate launch` hands on to torchrun's agent: it takes some of torchrun's options, and has
    many of its own."""
    if PurePosixPath(words[0]).name != "accelerate" or words[1:2] != ["launch"]:
        return None
    found = []
    for at, word in enumerate(words):
        if word.endswith(".py"):
            break
        name, equals, value = word.partition("=")
        option = name[2:].replace("_", "-") if name.startswith("--") else ""
        if option in _WITH_VALUE or option == "standalone":
            following = words[at + 1] if at + 1 < len(words) else ""
            found.append(Setting(option, _resolved(value if equals else following, environ), word))
    return _Launch(found)


def _full(name: str) -> str:
    """The option that the name, or its unambiguous beginning, stands for; empty for none."""
    if name in _OPTIONS or not name:
        return name
    fits = [option for option in _OPTIONS if option.startswith(name)]
    return fits[0] if len(fits) == 1 else ""


def _resolved(value: str, environ: Mapping[str, str]) -> str:
    """With references to what the operator sets replaced by it: ``$PET_RDZV_ID``, ``$(PET_RDZV_ID)``."""

    def known(match: re.Match[str]) -> str:
        return environ.get(match[1] or match[2] or match[3], match[0])

    return _REFERENCE.sub(known, value)


def _is_setting(variable: str) -> bool:
    return variable.startswith("PET_") and _option_of(variable) in _OPTIONS


def _option_of(variable: str) -> str:
    return variable.removeprefix("PET_").lower().replace("_", "-")


def _shell(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The script of ``sh -c SCRIPT``, wherever the shell stands, and what follows it; None without one."""
    for at, word in enumerate(words):
        if PurePosixPath(word).name == "torchrun":
            break
        if PurePosixPath(word).name not in _SHELLS:
            continue
        for here in range(at + 1, len(words)):
            if _SCRIPT_OPTION.fullmatch(words[here]) and here + 1 < len(words):
                return words[here + 1], words[here + 2 :]
            named = re.fullmatch(r"[-+][a-zA-Z]*[oO]", words[here - 1])
            if not words[here].startswith(("-", "+")) and not named:
                break
        break
    return None, ()


def _simple_commands(script: str) -> Iterator[list[str]]:
    """The words of each command in a shell's script, as far as they show without running it."""
    script = _REFERENCE.sub(lambda found: f"${{{found[1] or found[2] or found[3]}}}", script)
    script = _SUBSTITUTION.sub("$_", script.replace("\\\n", " "))
    script = _REDIRECTION.sub(" > ", script)
    try:
        lexer = shlex.shlex(script, posix=True, punctuation_chars=_SEPARATORS)
        lexer.whitespace = " \t\r"
        lexer.whitespace_split = True
        lexer.commenters = ""
        tokens = list(lexer)
    except ValueError:  # quotes that do not end
        tokens = re.findall(rf"[{re.escape(_SEPARATORS)}]+|[^\s{re.escape(_SEPARATORS)}]+", script)
    simple: list[str] = []
    for token in tokens:
        if token and not token.strip(_SEPARATORS):
            yield simple
            simple = []
        elif not simple and token in ("if", "then", "else", "do", "while", "until", "{", "!", "time"):
            continue
        else:
            simple.append(token)
    yield simple


def _assignments(simple: Sequence[str]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Variables that a command sets (name, value, as written), and the words without those before it."""
    found = []
    rest = list(simple)
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        found.append((match[1], match[2], rest.pop(0)))
    if rest and rest[0] in ("export", "declare", "typeset"):
        matches = [match for one in rest[1:] if (match := _ASSIGNMENT.fullmatch(one))]
        found += [(match[1], match[2], match[0]) for match in matches]
        return found, ["export"]
    if rest and rest[0] == "unset":
        found += [(one, "", f"unset {one}") for one in rest[1:] if not one.startswith("-")]
    return found, rest


def _without_torchrun(words: Sequence[str]) -> Judgement:
    program = PurePosixPath(words[0]).name if words else ""
    if program in _RANKS:
        return Judgement("ranks", runs=words[0])
    if _PYTHON.fullmatch(program):
        options = [word for word in words[1:] if word in _PYTHON_OPTIONS]
        script = next((word for word in words[1:] if word not in options), "")
        if script.endswith(".py"):
            return Judgement("python", runs=words[0])
    return Judgement("unknown", runs=words[0] if words else "")
