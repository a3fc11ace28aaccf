"""The stacks of a job's workers by rank, from the answers of their pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob

HANDLER_FOLDER = "/opt/elasticjob.dev/handler"
"""Where the operator puts the handler into a pod; a test compares it with the operator's."""
COMMAND = (
    "sh",
    "-c",
    f'export PYTHONPATH="{HANDLER_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"; '
    'for python in python python3; do command -v "$python" >/dev/null && '
    'exec "$python" -m elasticjob.stacks; done; echo "no python is in PATH" >&2; exit 127',
)
"""What is run in the training container."""


class Stack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The stack of a worker's main thread, newest call first, or why there is none. ``rank`` is RANK."""

    rank: int
    local_rank: int
    pid: int
    pod: str = ""
    node: str = ""
    stack: str = ""
    error: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the command has written in a pod."""

    exit_code: int
    output: str
    error: str = ""


class Stacks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The stacks of all pods that were asked. ``missing`` says which workers are not shown, and why."""

    name: str
    round: int
    stacks: list[Stack]
    missing: list[str] = []


def asked(job: ElasticJob, pods: Sequence[Pod], rank: int | None) -> list[Pod]:
    """The members' pods, by group rank, or that of one. Raises ValueError if there is none."""
    groups = {p.pod_name: p.group_rank for p in job.members if p.group_rank is not None}
    mine = [pod for pod in pods if pod.name in groups and pod.phase == "Running"]
    found = [pod for pod in mine if rank is None or groups[pod.name] == rank]
    if not found and groups and rank is not None:
        raise ValueError(f"no pod of {job.name} with group rank {rank} runs: expected 0 to {len(groups) - 1}")
    if not found:
        raise ValueError(
            f"no member of {job.name} runs ({job.state or 'no status'}): there are stacks while it trains. "
            f"After a hang they are in the logs: `elasticjob logs {job.name} --all --since-failure`"
        )
    return sorted(found, key=lambda pod: groups[pod.name])


def stacks(job: ElasticJob, answers: Mapping[str, Answer], pods: Sequence[Pod]) -> Stacks:
    """Put together what the pods have answered, by their names."""
    found, missing = [], []
    nodes = {pod.name: pod.node for pod in pods}
    expected = {p.pod_name: p.local_world_size for p in job.members}
    for name, answer in answers.items():
        mine = []
        for line in answer.output.splitlines():
            try:
                one = msgspec.json.decode(line, type=Stack)
            except msgspec.DecodeError:
                continue
            mine.append(msgspec.structs.replace(one, pod=name, node=nodes.get(name, "")))
        found += mine
        if answer.exit_code:
            missing.append(f"{name}: {_why(answer)}")
        elif len(mine) < (wanted := expected.get(name) or 1):
            missing.append(
                f"{name}: {len(mine)} of {wanted} workers can be asked: the others have not started yet, or "
                "have not imported elasticjob (elasticjob.report_progress comes with it)"
            )
    number = job.status.current_round.number if job.status else 0
    return Stacks(
        name=job.name, round=number, stacks=sorted(found, key=lambda one: one.rank), missing=missing
    )


def _why(answer: Answer) -> str:
    said = answer.error.strip().splitlines()
    text = said[-1] if said else f"exit code {answer.exit_code}"
    if "No module named" in text and "elasticjob" in text:
        return "its handler cannot tell stacks: it is older than this command, or of another Python"
    return text
