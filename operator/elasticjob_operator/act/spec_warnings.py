"""Warns a job's users of what is wrong with its spec, once for each generation."""

from __future__ import annotations

from elasticjob_operator.act import claims, template
from elasticjob_operator.act.events import log_event
from elasticjob_operator.act.job_state import JobState
from elasticjob_operator.plan.charges import failure_rules
from elasticjob_operator.plan.state.model import Event, Job
from elasticjob_operator.plan.template import accelerators, pod_group


def new_warnings(job: Job, state: JobState) -> tuple[Event, ...]:
    """The warnings that were not given yet."""
    found = (*_of_spec(job, state), *_of_accelerators(job, state))
    for event in found:
        log_event(job, event)
    return found


def _of_spec(job: Job, state: JobState) -> tuple[Event, ...]:
    if state.warnings.warned_generation == job.generation:
        return ()
    state.warnings.warned_generation = job.generation
    return (
        *(Event("FlagOverridesEnvironment", text, warning=True) for text in template.warnings(job)),
        *(Event("PythonPathReplaced", text, warning=True) for text in template.path_warnings(job)),
        *(Event("NoSuchContainer", text, warning=True) for text in template.misnamed_container(job)),
        *(Event("GroupMayBeIgnored", text, warning=True) for text in pod_group.warnings(job)),
        *(Event("InvalidRule", text, warning=True) for text in failure_rules.problems(job.spec.rules)),
    )


def _of_accelerators(job: Job, state: JobState) -> tuple[Event, ...]:
    """A warning that GPUs are not counted, when its text changes."""
    said = state.warnings
    if said.counted_generation == job.generation or claims.unread(job, state.pods):
        return ()
    before, said.uncounted = said.uncounted, accelerators.uncounted(job, state.pods.claims)
    said.counted_generation = job.generation
    if said.uncounted in ("", before):
        return ()
    return (Event("GPUsNotCounted", said.uncounted, warning=True),)
