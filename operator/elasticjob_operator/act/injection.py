"""Adds the handler to the pods of a job, so that the user's image need not contain it. Pure.

The first init container copies the handler from our image into a volume. The training container mounts the
volume read-only and has it on PYTHONPATH. Nothing in it is compiled, so it serves every Python from 3.10 on.
The directory contains only the package ``elasticjob`` and its metadata, by which torch finds the entry point,
so it hides no module of the user's image (docs/operate/pods.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob.contract.names import WARM_ENV
from elasticjob_operator.act.init_resources import same_resources, small_resources
from elasticjob_operator.plan.state.model import HandlerSource, Job
from elasticjob_operator.plan.template.containers import HANDLER_CONTAINER

VOLUME = HANDLER_CONTAINER
"""Name of the volume and of the init container. Pods of a template that has one of its own are refused by the
API server; the Event PodRejected names it."""
IMAGE_DIR = "/opt/elasticjob/site"
"""Where the handler is in its image (docker/handler.Dockerfile)."""
HANDLER_DIR = "/opt/elasticjob.dev/handler"
"""Where it is in the training container."""
PYTHONPATH = "PYTHONPATH"
ORIGINAL_PYTHONPATH = "ELASTICJOB_ORIGINAL_PYTHONPATH"
"""The template's PYTHONPATH where its value is not known before the container starts."""

USER = 65532
_SIZE_LIMIT = "32Mi"
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
EARLY_DIR = f"{HANDLER_DIR}/elasticjob/warm/early_site"
"""First in PYTHONPATH where workers are to start warm: torchrun makes their interpreters at its start."""
_PREPEND = 'export PYTHONPATH="%s${PYTHONPATH:+:$PYTHONPATH}"; exec "$0" "$@"'
"""For ``sh -c``: the words after it are the user's own, and become the process."""


@dataclass(frozen=True)
class HandlerImage:
    """Where the handler is copied from. ``pull_policy``: Always, IfNotPresent or Never; empty: Kubernetes
    decides by the tag."""

    name: str
    pull_policy: str = ""


def wanted(job: Job) -> bool:
    """Whether pods of the job get the handler."""
    return job.spec.template is not None and job.spec.handler_source == HandlerSource.INJECTED


def inject(
    spec: dict[str, Any], container: dict[str, Any], image: HandlerImage, is_small: bool = True
) -> None:
    """Change a pod's spec, and the training container in it. ``is_small``: the init container asks for as
    little as it can, otherwise for what the training container does."""
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        {"name": VOLUME, "emptyDir": {"sizeLimit": _SIZE_LIMIT}},
    ]
    spec["initContainers"] = [_copies(spec, container, image, is_small), *(spec.get("initContainers") or [])]
    mount = {"name": VOLUME, "mountPath": HANDLER_DIR, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
    _extend_path(container)


def warnings(container: Mapping[str, Any]) -> tuple[str, ...]:
    """What of the user's the injection may hide: the image itself can't be looked into from here."""
    if _given(container) is not None or container.get("envFrom") or _can_wrap(container):
        return ()
    odd = _not_for_sh(container)
    if container.get("command"):
        why = f"has variables that sh would drop ({', '.join(odd)})"
        advice = "to keep it, set it in the container's env"
    else:
        why = "has no command"
        advice = "to keep it, set it in the container's env, or specify the command"
    return (
        f"{PYTHONPATH} from the image of container {container.get('name')!r}, if there is one, is replaced "
        f"by {HANDLER_DIR}, because the container {why}; {advice}",
    )


def _copies(
    spec: Mapping[str, Any], container: Mapping[str, Any], image: HandlerImage, is_small: bool
) -> dict[str, Any]:
    """It inherits the pod's user, so that a platform which demands one of its own (OpenShift) is content; a
    pod without has the image's, which is not root either."""
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if (spec.get("securityContext") or {}).get("runAsUser") == 0:
        context["runAsUser"] = USER
    return {
        "name": VOLUME,
        "image": image.name,
        **({"imagePullPolicy": image.pull_policy} if image.pull_policy else {}),
        "command": ["cp", "-R", f"{IMAGE_DIR}/.", HANDLER_DIR],
        "resources": small_resources(container) if is_small else same_resources(container),
        "securityContext": context,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": VOLUME, "mountPath": HANDLER_DIR}],
    }


def _extend_path(container: dict[str, Any]) -> None:
    """Put our directory before what PYTHONPATH has: in the env where the template sets it, otherwise when the
    container runs, which also knows the image's."""
    ours = f"{EARLY_DIR}:{HANDLER_DIR}" if _warm(container) else HANDLER_DIR
    given = _given(container)
    if given is not None and "valueFrom" not in given:
        value = given.get("value") or ""
        _set_path(container, f"{ours}:{value}" if value else ours)
    elif _can_wrap(container):
        container["command"] = ["sh", "-c", _PREPEND % ours, *container["command"]]
    elif given is not None:
        env = container["env"]
        given["name"] = ORIGINAL_PYTHONPATH
        both = {"name": PYTHONPATH, "value": f"{ours}:$({ORIGINAL_PYTHONPATH})"}
        env.insert(env.index(given) + 1, both)
    elif container.get("envFrom"):
        # Where envFrom has none this reference stays as it is, a folder that does not exist.
        _set_path(container, f"{ours}:$({PYTHONPATH})")
    else:
        _set_path(container, ours)


def _warm(container: Mapping[str, Any]) -> bool:
    """Whether warm workers are switched on where it can be seen."""
    env = {entry.get("name"): entry.get("value") or "" for entry in container.get("env") or ()}
    words = [env.get("PET_RDZV_CONF", ""), *(container.get("command") or ()), *(container.get("args") or ())]
    return env.get(WARM_ENV) == "on" or any("warm=on" in str(word) for word in words)


def _can_wrap(container: Mapping[str, Any]) -> bool:
    return bool(container.get("command")) and not _not_for_sh(container)


def _not_for_sh(container: Mapping[str, Any]) -> list[str]:
    """Variables that Kubernetes allows and that do not survive a shell: dash, the sh of Debian and Ubuntu,
    passes on only what it could name itself. Those of envFrom can't be seen here."""
    names = (str(entry.get("name", "")) for entry in container.get("env") or ())
    return [name for name in names if not _SHELL_NAME.fullmatch(name)]


def _given(container: Mapping[str, Any]) -> dict[str, Any] | None:
    """The container's own entry for PYTHONPATH; of several the last, which counts."""
    found: dict[str, Any] | None = None
    for entry in container.get("env") or ():
        if entry.get("name") == PYTHONPATH:
            found = entry
    return found


def _set_path(container: dict[str, Any], value: str) -> None:
    """Replace the template's own entry, which may refer to others before it; append where there is no such
    entry."""
    env = container["env"] = container.get("env") or []
    given = _given(container)
    if given is None:
        env.append({"name": PYTHONPATH, "value": value})
    else:
        given["value"] = value
