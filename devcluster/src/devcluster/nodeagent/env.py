"""The environment and command line of a container, as kubelet makes them. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from devcluster.nodeagent.api import Object

Data = Mapping[str, str]


class ConfigError(Exception):
    """The container refers to something that is not there (kubelet: CreateContainerConfigError)."""


@dataclass(frozen=True)
class PodFacts:
    """What the downward API can tell of a pod."""

    pod: Object
    pod_ip: str
    host_ip: str


@dataclass(frozen=True)
class Sources:
    """Contents of the ConfigMaps and Secrets that a pod refers to, by name; those not found are absent."""

    config_maps: Mapping[str, Data] = field(default_factory=dict)
    secrets: Mapping[str, Data] = field(default_factory=dict)
    complete: bool = True
    """All of them were found."""


_REFERENCE = re.compile(r"\$(?:(\$)|\(([^()]*)\))")


def expand(text: str, variables: Data) -> str:
    """Replace ``$(NAME)``; ``$$`` stands for a dollar sign, and an unknown name is left as it is."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] else variables.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def container_env(container: Object, facts: PodFacts, sources: Sources, services: Data) -> dict[str, str]:
    """The variables of ``envFrom`` and ``env`` on top of ``services``, later ones winning.

    :raises ConfigError: a reference that is not optional leads nowhere
    """
    env = dict(services)
    for entry in container.get("envFrom") or []:
        prefix = entry.get("prefix", "")
        for kind, contents in (("configMapRef", sources.config_maps), ("secretRef", sources.secrets)):
            if reference := entry.get(kind):
                for key, value in _contents(reference, contents, kind).items():
                    env[prefix + key] = value
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            resolved = _value_from(entry["valueFrom"], facts, sources)
            if resolved is not None:
                env[entry["name"]] = resolved
        else:
            env[entry["name"]] = expand(entry.get("value", ""), env)
    return env


def command_line(container: Object, env: Data) -> list[str]:
    """``command`` and ``args`` with variables expanded. Empty if both are absent: no image can be asked."""
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    return [expand(word, env) for word in words]


def field_value(path: str, facts: PodFacts) -> str:
    """A downward API ``fieldPath``.

    :raises ConfigError: kubelet does not know such a field
    """
    metadata, spec = facts.pod["metadata"], facts.pod["spec"]
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
    }
    if path not in values:
        raise ConfigError(f"fieldPath {path!r} is not supported")
    return str(values[path])


def referenced(containers: Iterable[Object]) -> tuple[set[str], set[str]]:
    """Names of the ConfigMaps and of the Secrets that the environment of ``containers`` refers to."""
    config_maps: set[str] = set()
    secrets: set[str] = set()
    for container in containers:
        for entry in container.get("envFrom") or []:
            for kind, names in (("configMapRef", config_maps), ("secretRef", secrets)):
                if kind in entry:
                    names.add(entry[kind]["name"])
        for entry in container.get("env") or []:
            source = entry.get("valueFrom") or {}
            for kind, names in (("configMapKeyRef", config_maps), ("secretKeyRef", secrets)):
                if kind in source:
                    names.add(source[kind]["name"])
    return config_maps, secrets


def _value_from(source: Object, facts: PodFacts, sources: Sources) -> str | None:
    if "fieldRef" in source:
        return field_value(source["fieldRef"]["fieldPath"], facts)
    for kind, contents in (("configMapKeyRef", sources.config_maps), ("secretKeyRef", sources.secrets)):
        if reference := source.get(kind):
            data = _contents(reference, contents, kind)
            if reference["key"] in data:
                return data[reference["key"]]
            if reference.get("optional"):
                return None
            raise ConfigError(f"{kind}: no key {reference['key']!r} in {reference['name']!r}")
    raise ConfigError(f"valueFrom {sorted(source)} is not supported")


def _contents(reference: Object, contents: Mapping[str, Data], kind: str) -> Data:
    name = reference["name"]
    if name not in contents and not reference.get("optional"):
        raise ConfigError(f"{kind}: {name!r} not found")
    return contents.get(name, {})
