"""What ``elasticjob why`` says: one failure, from its round, pod, node and the end of the log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from elasticjob.contract.text import counted, node_words
from elasticjob_client.explain.repeated_advice import once
from elasticjob_client.explain.status import next_steps
from elasticjob_client.explain.steps import redone, state_words
from elasticjob_client.explain.times import age, duration, milliseconds
from elasticjob_client.pods import Pod
from elasticjob_client.resource import Account, ElasticJob, ExcludedNode, Failure, Round

_PLANNED = ("ScaledUp", "ScaledDown", "Suspended", "Resumed", "StartedAgain", "Started")


class Story(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A failure, or the end of a round. ``sentences`` tell it in order; the rest is what they are made of."""

    name: str
    namespace: str
    sentences: list[str]
    failure: Failure | None = None
    ended: Round | None = None
    following: Round | None = None
    log: list[str] = []
    log_pod: str = ""
    missing: list[str] = []
    """What could not be read, and why."""
    next: list[str] = []


def ended_round(job: ElasticJob, number: int | None = None) -> Round | None:
    """The round to tell of: the one that is asked for; the last failure's; the last that ended. None if none.

    Raises ValueError if the status does not have the round that is asked for, or if that one still runs.
    """
    history = job.status.round_history if job.status else []
    if number is not None:
        found = next((r for r in history if r.number == number), None)
        if found is None:
            there = f"{history[-1].number} to {history[0].number}" if history else "no round"
            raise ValueError(f"round {number} is not in the status of {job.name}, which has {there}")
        if found.end is None:
            raise ValueError(f"round {number} of {job.name} has not ended")
        return found
    failure = job.status.last_failure if job.status else None
    if failure and failure.round is not None:
        mine = next((r for r in history if r.number == failure.round and r.end), None)
        if mine:
            return mine
    if failure:
        return None
    return next((r for r in history if r.end), None)


def failure_of(job: ElasticJob, ended: Round | None, asked: bool) -> Failure | None:
    """The last failure, if it belongs to the end that is explained."""
    failure = job.status.last_failure if job.status else None
    if failure is None or (asked and (ended is None or failure.round != ended.number)):
        return None
    return failure


def pod_to_read(failure: Failure | None, pods: Sequence[Pod]) -> Pod | None:
    """The pod whose log tells more: that of the failure, if it is still there."""
    if failure is None:
        return None
    return next((p for p in pods if p.name == failure.pod_name and failure.pod_uid in ("", p.uid)), None)


def why(
    job: ElasticJob,
    pods: Sequence[Pod] | None,
    log: Sequence[str],
    now: datetime,
    number: int | None = None,
    missing: Sequence[str] = (),
) -> Story:
    """Tell it. ``pods``: None if they cannot be seen. ``log``: the last lines of the pod that ``pod_to_read``
    names."""
    ended = ended_round(job, number)
    failure = failure_of(job, ended, number is not None)
    following = _following(job, ended)
    read = pod_to_read(failure, pods or ())
    sentences = [
        *_outcome(job),
        *_end(job, ended, now),
        *_first(failure, ended, pods, now),
        *_cost(ended, following),
        *_node(job, failure),
    ]
    if not ended and not failure:
        sentences += _nothing(job)
    return Story(
        name=job.name,
        namespace=job.namespace,
        sentences=once(sentences),
        failure=failure,
        ended=ended,
        following=following,
        log=list(log),
        log_pod=read.name if read else "",
        missing=list(missing),
        next=[step for step in next_steps(job, pods or (), now) if "elasticjob why" not in step],
    )


def _outcome(job: ElasticJob) -> list[str]:
    failed = job.condition("Failed")
    if failed and failed.status == "True":
        return [f"The job has failed: {failed.reason}: {_sentence(failed.message)}"]
    return []


def _nothing(job: ElasticJob) -> list[str]:
    training = job.condition("Training")
    if training is None:
        return ["No failure: no operator has looked at this job yet."]
    return [f"No failure so far. The job is {training.reason}: {_sentence(training.message)}"]


def _end(job: ElasticJob, ended: Round | None, now: datetime) -> list[str]:
    if ended is None or ended.end is None:
        return []
    end = ended.end
    noticed = f", noticed after {milliseconds(end.detect_milliseconds)}" if end.detect_milliseconds else ""
    kind = "a planned change" if end.cause in _PLANNED else end.cause
    lines = [
        f"Round {ended.number} ended {age(end.time, now)} ago ({kind}{noticed}): {_sentence(end.message)}"
    ]
    account = next((a for a in job.status.accounts if a.name == end.account), None) if job.status else None
    if end.rule_name:
        lines.append(f"The failure rule {end.rule_name} decided.")
    if account and end.cause not in _PLANNED:
        lines.append(f"It is counted under {account.name}{_used(account)}.")
    elif end.cause not in _PLANNED:
        lines.append("It is not counted.")
    return lines


def _used(account: Account) -> str:
    allowed = account.max_restarts
    within = f" within {duration(account.window_seconds)}" if account.window_seconds else ""
    if allowed == 0:
        return ", which allows no restart"
    if allowed is not None and account.used > allowed:
        over = "one" if account.used == allowed + 1 else str(account.used - allowed)
        return f": {counted(account.used, 'restart')}{within}, {over} more than the {allowed} allowed"
    if allowed is None:
        return f": {counted(account.used, 'restart')}{within}, no limit"
    return f": {account.used} of {counted(allowed, 'restart')}{within}"


def _first(
    failure: Failure | None, ended: Round | None, pods: Sequence[Pod] | None, now: datetime
) -> list[str]:
    if failure is None:
        return []
    rank = f" (group rank {failure.group_rank})" if failure.group_rank is not None else ""
    node = f" on {node_words(failure.node_name)}" if failure.node_name else ""
    code = f": {exit_code(failure.exit_code)}" if failure.exit_code is not None else ""
    lines = [f"First to fail: {failure.pod_name}{rank}{node}{code}."]
    if failure.round is None and ended is None:
        lines[0] = f"{failure.pod_name}{node} ended {age(failure.time, now)} ago while no round ran{code}."
    if failure.message and not (ended and ended.end and failure.message in ended.end.message):
        lines.append(_sentence(failure.message))
    if failure.pod_name and pods is not None and pod_to_read(failure, pods) is None:
        lines.append(f"The pod {failure.pod_name} is gone, and its log with it.")
    return lines


def exit_code(code: int) -> str:
    """An exit code with what it stands for: negative, or above 128, for a signal."""
    signals = {
        1: "SIGHUP",
        2: "SIGINT",
        6: "SIGABRT",
        7: "SIGBUS",
        9: "SIGKILL",
        11: "SIGSEGV",
        15: "SIGTERM",
    }
    number = -code if code < 0 else code - 128
    return f"exit code {code}" + (f", {signals[number]}" if number in signals else "")


def exit_status(job: ElasticJob) -> int:
    """What a command that ran the job to its end returns: 0 if it is Complete, otherwise the failure's exit
    code as a shell has it (128+n for signal n), or 1."""
    if job.status is None or job.status.terminal_state == "Complete":
        return 0 if job.status else 1
    failure = job.status.last_failure
    code = failure.exit_code if failure and failure.exit_code is not None else 1
    return 128 - code if code < 0 else code if 0 < code < 256 else 1


def _following(job: ElasticJob, ended: Round | None) -> Round | None:
    if ended is None or job.status is None:
        return None
    return next((r for r in job.status.round_history if r.number == ended.number + 1), None)


def _cost(ended: Round | None, following: Round | None) -> list[str]:
    if ended is None or following is None:
        return []
    text = f"Round {following.number} followed with {counted(following.members, 'member')}"
    if following.rendezvous_milliseconds is not None:
        text += f"; all had met after {milliseconds(following.rendezvous_milliseconds)}"
    if following.first_step_milliseconds is not None:
        text += f", the first step came after {milliseconds(following.first_step_milliseconds)}"
    if following.resumed is not None:
        text += f"; {state_words(following.resumed)}"
    again = redone(ended, following)
    if again:
        text += f"; {counted(again, 'step')} {'was' if again == 1 else 'were'} trained again"
    return [f"{text}."]


def _node(job: ElasticJob, failure: Failure | None) -> list[str]:
    if failure is None or not failure.node_name or job.status is None:
        return []
    charged = {
        (account.name, charge.time, charge.round)
        for account in job.status.accounts
        for charge in account.charges
        if charge.node_name == failure.node_name
    }
    lines = []
    if len(charged) > 1:
        lines.append(f"Node {failure.node_name} has {len(charged)} of the charges that the status lists.")
    lines += [_excluded(n) for n in job.status.excluded_nodes if n.name == failure.node_name]
    return lines


def _excluded(node: ExcludedNode) -> str:
    state = "was excluded, which is lifted" if node.lifted_time else "is excluded"
    return f"Node {node.name} {state}: {_sentence(node.message)}"


def _sentence(text: str) -> str:
    stripped = text.strip()
    return stripped if stripped.endswith((".", "!", "?", ")")) or "\n" in stripped else f"{stripped}."
