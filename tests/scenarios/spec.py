"""Commands of scenarios about the job itself: its spec, and how it comes to train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elasticjob.contract.limits import Limits
from elasticjob.rounds.sizes import Sizes
from elasticjob_operator.plan.state.grant import Grant
from elasticjob_operator.plan.state.model import (
    CleanPodPolicy,
    GangScheduling,
    Job,
    JobSpec,
    Limit,
    MemoryCheckpoints,
    Pod,
    Rule,
)
from elasticjob_operator.plan.state.sized import sized
from elasticjob_operator.plan.state.status import JobStatus
from tests.asked import asked


class SpecCommands:
    """The part of ``World`` that is about the spec."""

    job: Job
    pods: dict[str, Pod]
    status: JobStatus
    trace: list[str]
    version: int
    grant: Grant | None
    fixed_gang: int | None

    def do_job(self, **options: str) -> None:
        """Set fields of the spec; ``template=none`` for pods of others, ``node``: the template names it;
        ``sizes=2,4`` or ``multiple=4``; ``gang=fixed``: a PodGroup that cannot be changed, ``gang=yes``: one
        that can, ``gang=Coscheduling`` or ``Volcano``: another scheduler's."""
        spec = asked(self.job.spec)
        budgets = {}
        for account in ("application", "infrastructure"):
            if account in options:
                budgets[account] = Limit(int(options[account]), 3600)
        keys = ("initial_last_call_timeout", "last_call_timeout", "rejoin_timeout", "establish_timeout")
        limits = {key: int(options[key]) for key in keys if key in options}
        hang = int(options["hang"]) if "hang" in options else spec.limits.hang_timeout
        self.job = replace(
            self.job,
            generation=self.job.generation + 1,
            uid=options.get("uid", self.job.uid),
            spec=_sized(
                spec,
                options,
                replicas=int(options.get("replicas", spec.replicas)),
                min_replicas=int(options["min"]) if "min" in options else spec.min_replicas,
                spares=int(options.get("spares", spec.spares)),
                memory_checkpoints=(
                    MemoryCheckpoints(int(options["memory"]))
                    if "memory" in options
                    else spec.memory_checkpoints
                ),
                gang_scheduling=_gang(options["gang"]) if "gang" in options else spec.gang_scheduling,
                drain_seconds=int(options.get("drain", spec.drain_seconds)),
                payback=int(options["payback"]) if "payback" in options else spec.payback,
                idle_deadline=(
                    int(options["idle_deadline"]) if "idle_deadline" in options else spec.idle_deadline
                ),
                fencing_after=(
                    int(options["fencing"])
                    if options.get("fencing", "proof") != "proof"
                    else spec.fencing_after
                ),
                fencing_needs_proof=options.get("fencing") == "proof" or spec.fencing_needs_proof,
                max_rounds_without_progress=(
                    int(options["stuck"]) if "stuck" in options else spec.max_rounds_without_progress
                ),
                template=None if options.get("template") == "none" else _on(options, spec.template),
                limits=replace(replace(spec.limits, **limits) if limits else Limits(), hang_timeout=hang),
                **budgets,
            ),
        )
        if options.get("gang") == "fixed":
            self.fixed_gang = self.job.spec.least
        self.version += 1

    def group_of_new_pod(self) -> str:
        """The PodGroup of a pod that is made now, none beside others that are in none. A fixed one is made
        again when no pod is in it."""
        spec = self.job.spec
        if spec.gang_scheduling == GangScheduling.NONE:
            return ""
        if any(not pod.group for pod in self.pods.values()):
            return ""
        if self.fixed_gang is not None and not any(pod.group for pod in self.pods.values()):
            self.fixed_gang = spec.least
        outgrown = self.fixed_gang is not None and self.fixed_gang > spec.least
        return "" if outgrown else "mnist-elasticjob"

    def do_delete_job(self, finalizer: str, pods: str = "") -> None:
        """Somebody deletes the job, and this finalizer keeps it. ``pods=orphaned``: the garbage collector has
        taken its pods from it, as ``--cascade=orphan`` asks."""
        self.job = replace(self.job, generation=self.job.generation + 1, finalizers=(finalizer,))
        if pods == "orphaned":
            self.pods = {name: replace(pod, of_this_job=False) for name, pod in self.pods.items()}
        self.version += 1

    def do_suspend(self) -> None:
        """``spec.suspend`` becomes true."""
        self._set_spec(suspend=True)

    def do_resume(self) -> None:
        """``spec.suspend`` becomes false."""
        self._set_spec(suspend=False)

    def do_ends(self, deadline: str = "", ttl: str = "", clean: str = "") -> None:
        """Set when the job ends, when it is deleted, and which of its pods are: ``deadline`` and ``ttl`` in
        seconds, ``clean`` as ``cleanPodPolicy``."""
        changes: dict[str, Any] = {}
        if deadline:
            changes["active_deadline"] = int(deadline)
        if ttl:
            changes["ttl_after_finished"] = int(ttl)
        if clean:
            changes["clean_pod_policy"] = CleanPodPolicy(clean).value
        self._set_spec(**changes)

    def do_queue(self, quota: str, why: str = "") -> None:
        """The job is in a queue, which gives quota to so many of its pods. ``why``: what the queue says where
        that is fewer than are wanted."""
        pods = min(int(quota), self.job.spec.pods)
        self.grant = Grant(pods, why if pods < self.job.spec.pods else "", int(quota))
        self.version += 1

    def _set_spec(self, **changes: Any) -> None:
        spec = replace(self.job.spec, **changes)
        self.job = replace(self.job, generation=self.job.generation + 1, spec=spec)
        self.version += 1

    def do_rule(self, name: str, does: str, **on: str) -> None:
        """Add a failure rule: ``rule gpu ExcludeNode error=ECC``, ``exit=42,43`` or ``reason=OOMKilled``."""
        rule = Rule(
            name,
            does,
            on_worker_exit_codes=tuple(int(code) for code in on.get("exit", "").split(",") if code),
            on_pod_reasons=tuple(reason for reason in on.get("reason", "").split(",") if reason),
            on_error_pattern=on.get("error", ""),
        )
        self._set_spec(rules=(*self.job.spec.rules, rule))

    def do_limit(self, account: str, restarts: str, window: str = "") -> None:
        """``limit application 1 window=600``, or ``none``."""
        allowed = None if restarts == "none" else int(restarts)
        self._set_spec(**{account: Limit(allowed, int(window) if window else None)})


def _sized(spec: JobSpec, options: dict[str, str], **changes: Any) -> JobSpec:
    listed = tuple(int(size) for size in options.get("sizes", "").split(",") if size)
    multiple = int(options.get("multiple", 1))
    sizes = Sizes(listed, multiple) if listed or multiple > 1 else spec.sizes
    return sized(replace(spec, sizes=sizes, **changes))


def _on(options: dict[str, str], template: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return {"spec": {"nodeName": options["node"]}} if "node" in options else template


def _gang(word: str) -> str:
    return GangScheduling.KUBERNETES if word in ("yes", "fixed") else GangScheduling(word)
