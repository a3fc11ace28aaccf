"""Conditions: what people and ``kubectl wait`` read. Every one is there from the first write.

The reason of Training is the STATE column: WaitingForPods, FormingRound, WaitingForFencing, Training,
Establishing, Suspended, Queued, Complete, Failed.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticjob.contract.names import slot_and_attempt
from elasticjob.contract.text import counted, listed, one_line
from elasticjob_operator.plan import lifecycle
from elasticjob_operator.plan.changes import deletion, draining, scaling, suspension
from elasticjob_operator.plan.losses import unheard
from elasticjob_operator.plan.pods import gang, ignored_pods, open_files
from elasticjob_operator.plan.rounds import fencing
from elasticjob_operator.plan.state.job_waits import JobWait
from elasticjob_operator.plan.state.model import CreatePod, GangScheduling, Pod
from elasticjob_operator.plan.state.outlook import Outlook, Waiting
from elasticjob_operator.plan.state.pass_state import Pass
from elasticjob_operator.plan.state.status import Condition, with_condition
from elasticjob_operator.plan.template import pod_group, torchrun_flags

UNSCHEDULED_SECONDS = 30.0
"""How long a pod may have neither a node nor a word from a scheduler until the condition says so."""

UNJOINED_SECONDS = 60.0
"""How long a container may run without joining before the status names it."""

MAX_SELECTOR = 200
"""Characters of a template's nodeSelector in a sentence."""

_MOST = 3
"""Reasons of one kind in a sentence."""

MAX_TOOL_MESSAGE = 1_000
"""Characters of a sentence in the conditions for tools, which show it in one line."""


def describe(p: Pass, outlook: Outlook) -> None:
    """Bring the conditions up to date with what this pass decided."""
    if p.before.finished:
        return
    _describe(p, outlook)
    _describe_for_tools(p)


def _describe_for_tools(p: Pass) -> None:
    """What kstatus (Flux, Helm, kpt) judges any resource by: Reconciling while the job should train and does
    not, Stalled once it has failed. Both follow from the others."""
    training, failed = p.status.condition("Training"), p.status.condition("Failed")
    if training is None or failed is None:
        return
    suspended = p.status.is_true("Suspended")
    suspending = suspended and bool(suspension.running(p))
    works = training.status != "True" and not p.status.terminal_state and (not suspended or suspending)
    reason = "Suspending" if suspending else training.reason
    _set(p, "Reconciling", str(works), reason, training.message[:MAX_TOOL_MESSAGE])
    stalled = failed.status == "True"
    _set(
        p,
        "Stalled",
        str(stalled),
        failed.reason if stalled else "NotStalled",
        failed.message[:MAX_TOOL_MESSAGE] if stalled else "the job has not failed",
    )


def _describe(p: Pass, outlook: Outlook) -> None:
    outcome, message = p.status.terminal_state, p.round.next_cause.message
    if outcome:
        _set(p, "Training", "False", outcome, message)
        _describe_suspension(p)
        for kind, reason in (("Complete", "JobFailed"), ("Failed", "JobComplete")):
            is_it = outcome == kind
            _set(p, kind, str(is_it), outlook.over if is_it else reason, message)
        return
    if deletion.wanted(p):
        status, reason, message = "False", deletion.REASON, deletion.sentence(p)
    else:
        status, reason, message = _training(p, outlook)
    _set(p, "Training", status, reason, message)
    _describe_suspension(p)
    for kind, reason in (("Complete", "NotFinished"), ("Failed", "NotFailed")):
        if p.status.condition(kind) is None:
            _set(p, kind, "False", reason, "the job has not finished")


def _describe_suspension(p: Pass) -> None:
    before = p.status.condition("Suspended")
    wanted = suspension.wanted(p) and p.round.drain is None
    if wanted and not p.status.terminal_state:
        _set(p, "Suspended", "True", suspension.reason(p), suspension.sentence(p))
    elif before is None:
        _set(p, "Suspended", "False", "NotSuspended", "the job was never suspended")
    elif before.status == "True" and not suspension.wanted(p):
        _set(p, "Suspended", "False", "Resumed", "the job was resumed")


def _training(p: Pass, outlook: Outlook) -> tuple[str, str, str]:
    r = p.round
    if r.phase == "Active":
        wanted = p.job.spec.replicas
        desired = f" ({wanted} desired)" if wanted != r.members else ""
        who = f"round {r.number} with {counted(r.members, 'member')}{desired}, leader {r.leader_pod_name}"
        if r.established_time is None:
            return (
                "False",
                "Establishing",
                f"{who}; waiting for the members to reach the leader{_shortage(p)}",
            )
        done = sum(m.succeeded for m in p.status.members())
        said = lifecycle.after_success(p) or (f"{counted(done, 'member')} succeeded" if done else "")
        stuck = _cannot_start(p)
        change = draining.describe(p) or outlook.change
        change = change.removesuffix(scaling.NONE_COMING) if stuck else change
        queue = "" if r.drain is not None else _queue(p)
        parts = (said, change, scaling.describe_sizes(p), queue, p.observed.uncounted)
        more = "".join(f"; {text}" for text in parts if text)
        state = "Training" if r.drain is None else "Draining"
        return "True", state, f"{who}{unheard.sentence(p)}{more}{_shortage(p)}{_held_up(p, stuck)}"
    ended = "" if r.resumed else f"round {r.number} ended: "
    why = f"{ended}{r.next_cause.message}; " if r.number else ""
    waiting = outlook.waiting
    if waiting.reason == fencing.REASON:
        return "False", waiting.reason, f"{waiting.why}. {why[:1].upper()}{why[1:].removesuffix('; ')}"
    if waiting.reason:
        return "False", waiting.reason, f"{why}{waiting.why}"
    running = any(p.alive(pod) and pod.running for pod in p.observed.pods)
    reason = "WaitingForPods" if not running or _none_starting(p, waiting) else "FormingRound"
    return "False", reason, f"{why}{_not_yet(p, waiting)}"


def _not_yet(p: Pass, waiting: Waiting) -> str:
    """Why the next round does not begin: what holds it up first, how many have joined last."""
    why, count = waiting.why, waiting.count
    early, unjoined, refused, stuck = _early_end(p), _unjoined(p), _refused(p), _cannot_start(p)
    if stuck and waiting.none_starting:
        why, stuck = f"{why.removesuffix(' is starting')} can start: {stuck}", ""
    elif not stuck and not refused:
        stuck = _stays_away(p)
    held = (early, unjoined, why, open_files.shortage(p), refused, stuck, ignored_pods.sentence(p))
    text = "; ".join(filter(None, (*held, _queue(p), p.observed.uncounted)))
    sizes = scaling.describe_sizes(p) if count else ""
    return "; ".join(filter(None, (text, sizes, count)))


def _queue(p: Pass) -> str:
    """Why the job has fewer pods than it asks for."""
    return p.job.grant.sentence if p.job.grant is not None else ""


def _shortage(p: Pass) -> str:
    text = open_files.shortage(p)
    return f"; {text}" if text else ""


def _none_starting(p: Pass, waiting: Waiting) -> bool:
    """Whether there are too few pods, and this pass makes none that the API server would take."""
    made = (action.name for action in p.actions if isinstance(action, CreatePod))
    return waiting.none_starting and all(name in p.observed.rejected_pods for name in made)


def _held_up(p: Pass, stuck: str) -> str:
    """How the last pod ended before it joined, pods that can't be made, scheduled or started (``stuck``), in
    the words of the API server, the scheduler or the kubelet, those that run and do not join, and those that
    are ignored."""
    held = (
        _early_end(p),
        "; ".join(filter(None, (_refused(p), stuck))) or _stays_away(p) or _unjoined(p),
        ignored_pods.sentence(p),
    )
    return "".join(f"; {text}" for text in held if text)


def _early_end(p: Pass) -> str:
    """How the last pod ended before it joined, until another of its slot has joined: its log goes with it."""
    failure = p.status.last_failure
    place = slot_and_attempt(p.job.name, failure.pod_name) if failure is not None else None
    if failure is None or failure.round is not None or place is None:
        return ""
    own = [pod for pod in p.observed.pods if pod.slot == place[0] and p.alive(pod)]
    awaited = any(p.participant(pod) is None for pod in own) if own else place[0] in p.missing_slots()
    return failure.message if awaited and p.job.spec.template is not None else ""


def _cannot_start(p: Pass) -> str:
    """Pods that can't be made, scheduled or started, each with the reason."""
    stuck: dict[str, list[str]] = {}
    selector = _node_selector(p)
    held = gang.held(p)
    for write in sorted(p.observed.failing_writes, key=lambda write: write.name):
        if write.verb == "created":
            stuck.setdefault(f"cannot be created: {write.why}", []).append(write.name)
    for pod in p.observed.pods:
        if p.alive(pod) and (pod.unschedulable or pod.waiting) and not pod.running:
            off = (
                f" (avoids {listed(pod.avoids)}, see status.excludedNodes)"
                if pod.avoids and not pod.node
                else ""
            )
            why = f"not scheduled{selector}: {pod.unschedulable}" if pod.unschedulable else pod.waiting
            stuck.setdefault(why + off, []).append(pod.name)
        elif pod not in held and _is_unknown_to_schedulers(p, pod):
            stuck.setdefault(_unknown_to_schedulers(p), []).append(pod.name)
    why_held = [gang.sentence(p, held)] if held else []
    return "; ".join([*(f"{listed(names)}: {why}" for why, names in stuck.items()), *why_held][:_MOST])


def _refused(p: Pass) -> str:
    """Other writes that the API server refuses, such as deletions: no reason why a pod does not start."""
    writes = sorted(p.observed.failing_writes, key=lambda write: write.name)
    found = [f"{w.name} cannot be {w.verb}: {w.why}" for w in writes if w.verb != "created"]
    return "; ".join(found[:_MOST])


def _node_selector(p: Pass) -> str:
    """What the template asks of nodes, as a clause; the scheduler's words do not say it."""
    wanted = ((p.job.spec.template or {}).get("spec") or {}).get("nodeSelector")
    if not isinstance(wanted, Mapping) or not wanted:
        return ""
    text = one_line(", ".join(f"{key}={value}" for key, value in wanted.items()), MAX_SELECTOR)
    return f" (nodeSelector {text})"


def _unknown_to_schedulers(p: Pass) -> str:
    """A sentence on pods that no scheduler has considered, and which one should."""
    name = pod_group.scheduler_name(p.job)
    text = f"not considered by any scheduler for {UNSCHEDULED_SECONDS:.0f} s"
    if not name:
        gathers = p.job.spec.gang_scheduling != GangScheduling.NONE
        group = ", and the PodGroup: a missing one is made again in five minutes" if gathers else ""
        return f"{text}; check schedulerName{group}"
    of_template = ((p.job.spec.template or {}).get("spec") or {}).get("schedulerName") == name
    whose = "schedulerName of the template" if of_template else "for spec.gangScheduling"
    return f"{text}; is a scheduler {one_line(name, 100)!r} ({whose}) running?"


def _stays_away(p: Pass) -> str:
    """Pods on nodes that are not ready, and members that do not come back."""
    cut_off = [pod.name for pod in p.observed.pods if _waits_for_node(p, pod)]
    if cut_off:
        are = "its node is" if len(cut_off) == 1 else "their nodes are"
        return f"{listed(cut_off)}: {are} not ready"
    stays_away = _not_rejoined(p)
    if stays_away:
        one = len(stays_away) == 1
        return (
            f"{listed(stays_away)} still {'runs' if one else 'run'} and did not rejoin; see "
            f"{'its log' if one else 'their logs'}, and delete the {'pod' if one else 'pods'} to have "
            f"{'it' if one else 'them'} created again"
        )
    return ""


def _unjoined(p: Pass) -> str:
    """A pod that runs and does not join."""
    members = p.status.member_uids
    for pod in p.observed.pods:
        silent = p.alive(pod) and pod.running and p.participant(pod) is None and pod.uid not in members
        if silent and p.waits.left(JobWait.UNJOINED, pod.uid, UNJOINED_SECONDS) == 0:
            why = torchrun_flags.why_apart(p.job)
            hint = f": {why}" if why else f"; see its log, and check that its command runs {_torchrun(p)}"
            return f"{pod.name} has run for {UNJOINED_SECONDS:.0f} s and has not joined{hint}"
    return ""


def _not_rejoined(p: Pass) -> list[str]:
    """Members that were given up and still run, of a job whose pods are not ours to replace."""
    if p.job.spec.template is not None or p.round.phase != "Broken":
        return []
    joined = {pod.uid for pod, _ in p.joined()}
    away = (p.status.lost_pod_uids & p.pods_by_uid.keys()) - joined
    return [pod.name for pod in p.observed.pods if pod.uid in away and p.alive(pod) and pod.running]


def _is_unknown_to_schedulers(p: Pass, pod: Pod) -> bool:
    pending = p.alive(pod) and not pod.node and not pod.running
    return pending and p.waits.left(JobWait.UNSCHEDULED, pod.uid, UNSCHEDULED_SECONDS) == 0


def _waits_for_node(p: Pass, pod: Pod) -> bool:
    """Whether the next round waits for this pod's node alone."""
    ready = pod.node_ready and not pod.unreachable
    return p.round.phase == "Broken" and p.alive(pod) and bool(pod.node) and not ready


def _torchrun(p: Pass) -> str:
    if p.job.spec.template is None:
        return f"torchrun --rdzv-backend=k8s --rdzv-endpoint={p.job.name}"
    return torchrun_flags.NEEDED


def _set(p: Pass, kind: str, status: str, reason: str, message: str) -> None:
    condition = Condition(kind, status, reason, message[:4096], observed_generation=p.job.generation)
    p.set(conditions=with_condition(p.status.conditions, condition, p.now.wall))
