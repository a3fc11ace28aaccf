"""What the template's command shows of why its pods do not join: flags, or another program than torchrun."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elasticjob.contract import launch_command
from elasticjob.contract.launch_command import KEPT_APART, KEPT_APART_LISTED, Judgement, Setting
from elasticjob.contract.text import one_line
from elasticjob_operator.plan.state.model import HandlerSource, Job
from elasticjob_operator.plan.template.containers import container_of

NEEDED = f"torchrun without {KEPT_APART_LISTED}"

MUST = (
    f"its command must run torchrun: plain python, or torchrun with {KEPT_APART_LISTED}, trains alone in "
    "each pod; delete the job, and apply it again with torchrun and none of these flags"
)
"""What to do if a pod has ended well and never joined, and the template does not show why."""

MAX_WORD = 100


def environment(job: Job) -> dict[str, str]:
    """The options that torchrun gets in every pod."""
    most = job.spec.replicas if job.spec.max_replicas is None else job.spec.max_replicas
    return launch_command.environment(f"{job.namespace}/{job.name}", job.uid, most)


def judgement(job: Job, container: Mapping[str, Any]) -> Judgement:
    """What this container's command does."""
    command, args = (
        [str(word) for word in part] if isinstance(part, list) else []
        for part in (container.get("command"), container.get("args"))
    )
    injected = job.spec.handler_source == HandlerSource.INJECTED
    return launch_command.judge(command, args, environment(job), injected)


def overriding(job: Job, container: Mapping[str, Any]) -> list[str]:
    """What of the command overrides this environment, as words: ``has the flag --nnodes=1``.

    A flag with the value that the environment has anyway does no harm; `accelerate launch` needs two such.
    """
    return [
        f"has the flag {one.written}" if _is_flag(one) else f"has {one.written!r} in its command"
        for one in judgement(job, container).overriding
    ]


def why_apart(job: Job) -> str:
    """Why a pod that runs this command takes no part in rounds, if the template shows it for certain."""
    found = judgement(job, container_of(job.spec.template))
    runs = one_line(found.runs, MAX_WORD)
    if found.kind in ("alone", "overridden"):
        apart = [one for one in found.overriding if f"--{one.option}" in KEPT_APART]
        many = len(apart) > 1
        effect = (
            "so each pod trains alone"
            if found.kind == "alone"
            else f"which override{'s' * (not many)} what the operator sets"
        )
        them = "them" if many else "it"
        return f"its command {_has(apart)}, {effect}: delete the job, and apply it again without {them}"
    if found.kind == "python":
        return (
            f"its command runs {runs}, not torchrun. If the script does not start torchrun itself, each pod "
            "trains alone: delete the job, and apply it again with torchrun instead"
        )
    if found.kind == "ranks":
        return (
            f"its command runs {runs}, which starts a fixed number of ranks itself: delete the job, and "
            "apply it again with torchrun instead"
        )
    return ""


def _has(apart: Iterable[Setting]) -> str:
    """``has the flag --standalone and sets PET_NNODES=1``."""
    flags = [one_line(one.written, MAX_WORD) for one in apart if _is_flag(one)]
    others = [one_line(one.written, MAX_WORD) for one in apart if not _is_flag(one)]
    said = [f"has the flag{'s' * (len(flags) > 1)} {', '.join(flags)}"] if flags else []
    said += [f"has {', '.join(others)}"] if others else []
    return " and ".join(said)


def _is_flag(setting: Setting) -> bool:
    return setting.written.startswith("-")
