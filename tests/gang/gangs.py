"""The kinds of PodGroups that a job may have, and the fields that each has for the same facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from devcluster import coscheduling
from devcluster.go_tool import module_source


@dataclass(frozen=True)
class Gang:
    """One value of ``spec.gangScheduling``. ``versions``: of its API, the preferred first; ``minimum``: where
    a PodGroup says how many pods are placed together; ``named``: where a pod says in which it is;
    ``scheduler``: the schedulerName that the template has to have; ``file``: the resource definition, in the
    version of a Go module."""

    name: str
    versions: tuple[str, ...]
    minimum: tuple[str, ...]
    named: tuple[str, ...]
    scheduler: str = ""
    module: tuple[str, str] = ("", "")
    file: str = ""

    def definition(self) -> Path:
        """The file of the resource definition. Raises RuntimeError if the module can't be downloaded."""
        return module_source(*self.module) / self.file

    def group_of(self, pod: Mapping[str, Any]) -> str:
        """The PodGroup that the pod names, "" for none."""
        return str(at(pod, self.named) or "")


KUBERNETES = Gang(
    "Kubernetes",
    ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2"),
    minimum=("spec", "schedulingPolicy", "gang", "minCount"),
    named=("spec", "schedulingGroup", "podGroupName"),
)
COSCHEDULING = Gang(
    "Coscheduling",
    ("scheduling.x-k8s.io/v1alpha1",),
    minimum=("spec", "minMember"),
    named=("metadata", "labels", "scheduling.x-k8s.io/pod-group"),
    scheduler=coscheduling.SCHEDULER,
    module=(coscheduling.MODULE, coscheduling.VERSION),
    file=coscheduling.DEFINITION,
)
VOLCANO = Gang(
    "Volcano",
    ("scheduling.volcano.sh/v1beta1",),
    minimum=("spec", "minMember"),
    named=("metadata", "annotations", "scheduling.k8s.io/group-name"),
    # Its scheduler cannot be built from published modules: it needs one that is in its repository alone.
    module=("volcano.sh/volcano", "v1.15.1"),
    file="config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml",
)
ALL = (KUBERNETES, COSCHEDULING, VOLCANO)
PLACED = (KUBERNETES, COSCHEDULING)
"""Those whose scheduler runs here."""


def at(value: Any, path: Sequence[str]) -> Any:
    """What is there, None if nothing is."""
    return reduce(lambda found, key: (found or {}).get(key), path, value)
