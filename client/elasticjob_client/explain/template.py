"""What ``elasticjob doctor JOB`` concludes from a job's template and from how its pods are: pure.

Nothing looks into the image: of Python and torch, its name is read. What has been seen of pods counts more
than what is read: a command that has joined a round is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from elasticjob.contract.devices import Device, devices
from elasticjob.contract.launch_command import Judgement, environment, judge
from elasticjob.contract.text import listed
from elasticjob_client.explain import lenient_template, unscheduled
from elasticjob_client.explain.checks import Check
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob

_LONGEST = 800
"""Letters of what is found, or of advice: templates and images may have any names."""
OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 4)
ENTRY_POINT_TORCH = (2, 5)
"""The first torch that finds backends by their metadata."""
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_OWN_RUN = "elasticjob.run"
_PYTHON_VERSION = re.compile(r"(?:python[-:]?|py)(3)\.?(\d{1,3})(?!\d)")
_TORCH_VERSION = re.compile(r"torch[-:]v?(\d)\.(\d{1,3})(?!\d)")
_HANDLER_CONTAINER = "elasticjob-handler"
"""The operator's init container, which brings the handler."""
_INSTALLER = f"init container {_HANDLER_CONTAINER} "
"""Part of the operator's words for a pod in which the handler could not be installed."""
_FOUND_IN_LOGS = (
    (
        re.compile(r"rendezvous backend '?k8s'? is not registered", re.IGNORECASE),
        "torchrun does not find the backend k8s",
        "with torch 2.4 use `python -m elasticjob.run`; a command must not replace PYTHONPATH, nor start "
        "Python with -I or -E; with handlerSource: Image, install the handler in the image",
    ),
    (
        re.compile(r"No module named '?torch\b"),
        "the image has no torch",
        "install torch 2.4 or later in the image, for the Python that the command starts",
    ),
    (
        re.compile(r"torchrun['\"]?: (executable file )?not found|torchrun: No such file"),
        "the image has no torchrun in PATH",
        "install torch in the image, or start it as `python -m torch.distributed.run`",
    ),
)


def checks(job: ElasticJob, pods: Sequence[Pod] | None, logs: Sequence[str] = ()) -> list[Check]:
    """All checks of one job. ``pods``: None if the user may not see them. ``logs``: the last lines of a pod
    that has not joined."""
    template = job.spec.template
    if not template:
        text = "the job has no template: its pods are made by others, and are not looked at"
        advice = (
            f"`elasticjob status {job.name}` shows which have joined; what they need: docs/use/own-pods.md"
        )
        return [_check("template", "unknown", text, advice)]
    whole = lenient_template.template(template)
    container = training_container(whole)
    joined = job.status is not None and bool(job.status.participants or job.status.round_history)
    return [
        _command(job, container, joined),
        *_versions(container, joined),
        _handler(job, joined, logs),
        _resources(container),
        *_processes(job, whole, container),
        *_images(container, pods, joined),
        *_waiting(job, pods or ()),
    ]


def training_container(template: dict[str, Any]) -> dict[str, Any]:
    """The container in which torchrun runs: the one that an annotation names, otherwise the first."""
    containers: list[dict[str, Any]] = (template.get("spec") or {}).get("containers") or [{}]
    named = ((template.get("metadata") or {}).get("annotations") or {}).get(_DEFAULT_CONTAINER)
    return next((one for one in containers if one.get("name") == named), containers[0])


def _command(job: ElasticJob, container: dict[str, Any], joined: bool) -> Check:
    command, args = ([str(word) for word in container.get(part) or []] for part in ("command", "args"))
    words = [*command, *args]
    shown = " ".join(" ".join(words[:4]).split())[:80]
    if joined:
        return _check("command", "ok", f"`{shown}` has joined" if shown else "the image's own has joined")
    most = job.spec.max_replicas or job.spec.replicas or 1
    ours = environment(f"{job.namespace}/{job.name}", job.metadata.uid or "", most)
    verdict = judge(command, args, ours, (job.spec.handler_source or "Injected") == "Injected")
    if verdict.kind == "image":
        text = "the template has none: the image's own starts, which cannot be seen from here"
        return _check("command", "unknown", text, "set command: [torchrun, train.py]")
    result, found, advice = judged(verdict)
    return _check("command", result, f"`{shown}`: {found}" if found else f"`{shown}`", advice)


def judged(found: Judgement) -> tuple[Literal["ok", "failed", "unknown"], str, str]:
    """What a command does, as the operator judges it: result, what was found, what to do."""
    use = "use `torchrun train.py`: docs/use/launchers.md"
    words = ", ".join(one.written for one in found.overriding)
    if found.kind in ("alone", "overridden") or words:
        one = len(found.overriding) == 1
        return (
            "failed",
            f"{words} override{'s' * one} what the operator sets",
            f"leave out {words}: the operator sets {'it' if one else 'them'}",
        )
    if found.kind == "isolated":
        flag = found.runs.rpartition(" ")[2]
        return "failed", f"Python with {flag} does not find the backend", f"leave out {flag}"
    if found.kind == "path":
        return "failed", "it replaces PYTHONPATH, where the backend is", "write PYTHONPATH=/app:$PYTHONPATH"
    if found.kind == "python":
        return "failed", "it starts no torchrun: each pod would train alone", use
    if found.kind == "ranks":
        return "failed", f"{found.runs} starts a fixed number of ranks itself, and joins no round", use
    return ("ok", "", "") if found.kind == "joins" else ("unknown", "not known to start torchrun", use)


def _versions(container: dict[str, Any], joined: bool) -> list[Check]:
    """What the image's name says of Python and torch."""
    image = str(container.get("image") or "")
    if image.split() != [image]:
        return []
    said = image.partition("@")[0]
    found = []
    for what, pattern, oldest, ask in (
        ("python", _PYTHON_VERSION, OLDEST_PYTHON, "python --version"),
        ("torch", _TORCH_VERSION, OLDEST_TORCH, "python -c 'import torch; print(torch.__version__)'"),
    ):
        match, least = pattern.search(said), ".".join(map(str, oldest))
        if match is None:
            if joined:
                found.append(_check(what, "ok", "has joined with it"))
            else:
                text = f"{image} does not say which: {least} or later is needed"
                found.append(
                    _check(what, "unknown", text, f"see which it has: `docker run --rm {image} {ask}`")
                )
            continue
        version = (int(match[1]), int(match[2]))
        shown = f"{image} has {version[0]}.{version[1]}, by its name"
        if version < oldest:
            found.append(_check(what, "failed", shown, f"use an image with {least} or later"))
        elif what == "torch" and version < ENTRY_POINT_TORCH and _OWN_RUN not in _words(container):
            advice = "torch 2.4 finds no backends: the command must be `python -m elasticjob.run train.py`"
            found.append(_check(what, "failed", shown, advice))
        else:
            found.append(_check(what, "ok", shown))
    return found


def _words(container: dict[str, Any]) -> str:
    return " ".join(map(str, [*(container.get("command") or []), *(container.get("args") or [])]))


def _handler(job: ElasticJob, joined: bool, logs: Sequence[str]) -> Check:
    failure, training = job.status and job.status.last_failure, job.condition("Training")
    trains = training is not None and training.status == "True"
    if failure and _INSTALLER in failure.message and not trains:
        advice = (
            "the chart's handler.image must be the handler's own image, of the operator's version: ask the "
            "administrators of the cluster"
        )
        return _check("handler", "failed", failure.message, advice)
    if joined:
        return _check("handler", "ok", "pods have joined with it")
    for pattern, found, advice in _FOUND_IN_LOGS:
        if any(pattern.search(line) for line in logs):
            return _check("handler", "failed", f"a pod's log says that {found}", advice)
    if (job.spec.handler_source or "Injected") == "Injected":
        return _check("handler", "ok", "an init container adds it to each pod")
    return _check(
        "handler",
        "unknown",
        "handlerSource: Image says that the image has it, which cannot be seen from here",
        "`pip install ./handler` (of a clone of ElasticJob) in the image, or handlerSource: Injected",
    )


def _resources(container: dict[str, Any]) -> Check:
    asked = container.get("resources") or {}
    whole = {**(asked.get("limits") or {}), **(asked.get("requests") or {})}
    if not whole:
        advice = "set resources.requests of cpu and memory: a pod without is evicted first"
        return _check("resources", "unknown", "the training container asks for none", advice)
    return _check("resources", "ok", ", ".join(f"{name} {value}" for name, value in sorted(whole.items())))


def _processes(job: ElasticJob, template: dict[str, Any], container: dict[str, Any]) -> list[Check]:
    """Whether nprocPerNode fits the devices that the container asks for, as far as they can be counted."""
    processes = job.spec.nproc_per_node
    found = list(devices(template, container, {}))
    if processes == "gpu":
        return _one_for_each_gpu(found)
    if not isinstance(processes, int) or not found or any(not one.counted for one in found):
        return []
    numbers = [one.number for one in found if one.number is not None]
    gpus = sum(numbers)
    if len(numbers) < len(found) or processes == gpus:
        return []
    text = (
        f"{processes} process{'es' * (processes != 1)} (nprocPerNode) for {gpus} GPU{'s' * (gpus != 1)} in "
        "each pod"
    )
    if processes > gpus:
        return [_check("processes", "failed", text, f"set nprocPerNode: {gpus}, or gpu")]
    return [_check("processes", "unknown", text, "set nprocPerNode: gpu for one on each GPU")]


def _one_for_each_gpu(found: Sequence[Device]) -> list[Check]:
    if any(one.counted for one in found):
        return []
    if not found:
        text = "nprocPerNode: gpu, and the training container has no GPU in its limits"
        return [_check("processes", "failed", text, "set resources.limits, such as nvidia.com/gpu: 1")]
    text = f"nprocPerNode: gpu, and whether torch counts {listed([one.name for one in found])} is not known"
    advice = "if pods end with `Cuda is not available`, set nprocPerNode to the number of devices in a pod"
    return [_check("processes", "unknown", text, advice)]


def _images(container: dict[str, Any], pods: Sequence[Pod] | None, joined: bool) -> list[Check]:
    image = str(container.get("image") or "")
    if image.split() != [image]:
        text = f"the training container's image is {image!r}, which names none"
        return [_check("image", "failed", text, "set image in the template, such as pytorch/pytorch:2.6.0")]
    if stuck := [pod for pod in pods or () if "Image" in pod.waiting]:
        return [_not_pulled(stuck)]
    tag = image.rpartition("/")[2].partition(":")[2]
    if "@" not in image and tag in ("", "latest"):
        text = f"{image} can be another image on each node, and after each restart"
        return [
            _check("image", "unknown", text, "name a version, or better a digest: all members must have one")
        ]
    if pods is None and not joined:
        text = f"{image}: whether pods can pull it is not seen"
        return [_check("image", "unknown", text, "`elasticjob status JOB` tells what the job waits for")]
    pods = pods or ()
    there = sum(pod.started is not None or pod.ended is not None for pod in pods)
    if there or joined:
        return [
            _check("image", "ok", f"{image} is pulled for {there} of {len(pods)} pods" if pods else image)
        ]
    text = f"{image} is pulled for 0 of {len(pods)} pods" if pods else f"{image}: no pod has asked for it"
    return [_check("image", "unknown", text, "`elasticjob events JOB --pods` tells what pods wait for")]


def _not_pulled(stuck: Sequence[Pod]) -> Check:
    first = stuck[0]
    whose, advice = "", "check the image's name, and imagePullSecrets in the template"
    if first.waiting_container == _HANDLER_CONTAINER:
        whose = f", container {_HANDLER_CONTAINER}"
        advice = (
            "it is the handler's image, which the chart's handler.image names: ask the administrators of the "
            "cluster; where it is private, imagePullSecrets in the template"
        )
    elif first.waiting_container not in ("", first.container):
        whose = f", container {first.waiting_container}"
    return _check("image", "failed", f"{_names(stuck)}{whose}: {first.waiting}", advice)


def _waiting(job: ElasticJob, pods: Sequence[Pod]) -> list[Check]:
    """Pods that do not start, and not because of their image."""
    found = []
    waiting = [pod for pod in pods if pod.waiting and "Image" not in pod.waiting and pod.started is None]
    for reason in dict.fromkeys(pod.waiting for pod in waiting):
        mine = [pod for pod in waiting if pod.waiting == reason]
        may_pass, advice = False, "`elasticjob events JOB --pods` tells more"
        if reason.startswith(unscheduled.REASON):
            may_pass, advice, _ = unscheduled.advice(job, reason)
        found.append(_check("pods", "unknown" if may_pass else "failed", f"{_names(mine)}: {reason}", advice))
    return found


def _names(pods: Sequence[Pod]) -> str:
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"{pods[0].name}{more}"


def _check(subject: str, result: Literal["ok", "failed", "unknown"], found: str, advice: str = "") -> Check:
    return Check(result=result, subject=subject, found=_cut(found), advice=_cut(advice))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
