"""The error texts of failed workers: without torch's standard advice, and an Event where a failure rule looks
for a text and the failure has none."""

from __future__ import annotations

import re

from elasticjob.contract.text import NO_ERROR_TEXT, listed
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import Failure

_CHATTER = re.compile(
    r"\. (?:This is typically caused by a remote worker (?:hanging|crashing)"
    r"|This may indicate a possible application crash on rank"
    r"|Check the logs of the remote worker)\b.*"
)
"""The advice that torch appends to each error of a connection."""


def without_chatter(text: str) -> str:
    """The error itself, for a sentence. Rules see all of it."""
    return _CHATTER.sub("", text)


def report(p: Pass, failure: Failure) -> None:
    """Say it once for each generation of the job. ``failure``: one that no rule matched."""
    names = [rule.name for rule in p.job.spec.rules if rule.on_error_pattern]
    if not names or not failure.message.endswith(NO_ERROR_TEXT):
        return
    if not p.waits.begins(JobWait.NO_ERROR_TEXT_REPORTED, p.job.generation):
        return
    which = f"rule{'s' * (len(names) != 1)} {listed(names)}"
    p.event(
        "NoErrorText",
        f"onErrorPattern of {which} cannot match: the failure of {failure.pod_name} has no error text; "
        "decorate the script's main function with @record (torch.distributed.elastic.multiprocessing.errors)",
        warning=True,
        pod=failure.pod_name,
    )


def remember(p: Pass) -> None:
    """Keep in mind that it was said."""
    p.waits.continues(JobWait.NO_ERROR_TEXT_REPORTED, p.job.generation)
