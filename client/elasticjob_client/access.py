"""Which cluster, user and namespace: as kubectl finds them.

lightkube reads a single kubeconfig and knows credential plugins up to v1beta1. Here is what is missing for
kubectl's users: several files in KUBECONFIG, whose first mention of a name wins, and plugins of v1, which are
told in the environment what is asked of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_LISTS = ("clusters", "contexts", "users")
_PLUGIN = "client.authentication.k8s.io"


def configuration(kubeconfig: str | None = None, context: str | None = None) -> SingleConfig:
    """The context that is asked for, or the current one; in a pod without a kubeconfig, its service account.

    Raises lightkube's ConfigError with what is missing.
    """
    given = kubeconfig or os.environ.get("KUBECONFIG", "")
    files = [Path(one).expanduser() for one in given.split(os.pathsep) if one]
    if kubeconfig and not files[0].is_file():
        raise ConfigError(f"there is no file {kubeconfig}")
    files = [file for file in files or [Path("~/.kube/config").expanduser()] if file.is_file()]
    if not files:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return _chosen(KubeConfig.from_service_account(), context)
        raise ConfigError(
            f"there is no kubeconfig: expected {given or '~/.kube/config'}; "
            "set KUBECONFIG or --kubeconfig to the file that leads to your cluster"
        )
    return _chosen(KubeConfig.from_dict(merged(files)), context)


def _chosen(config: KubeConfig, context: str | None) -> SingleConfig:
    names = ", ".join(sorted(config.contexts))
    wanted = context or config.current_context
    if not names:
        raise ConfigError("the kubeconfig has no contexts: get one of a cluster, from its administrators")
    if not wanted:
        raise ConfigError(f"no context is current: choose one of {names} with --context")
    if wanted not in config.contexts:
        raise ConfigError(f"there is no context {wanted!r} in the kubeconfig: it has {names}")
    entry = config.contexts[wanted]
    for kind, name, known in (
        ("cluster", entry.cluster, config.clusters),
        ("user", entry.user, config.users),
    ):
        if name not in known and (name or kind == "cluster"):
            raise ConfigError(
                f"context {wanted!r} names the {kind} {name!r}, which the kubeconfig does not have"
            )
    found = config.get(wanted)
    assert found is not None
    if not found.cluster.server.startswith(("http://", "https://")):
        raise ConfigError(
            f"the server of cluster {entry.cluster!r} is {found.cluster.server!r}: expected https://HOST:PORT"
        )
    for what, path in (
        ("certificate-authority", found.cluster.certificate_auth),
        ("client-certificate", found.user.client_cert if found.user else None),
        ("client-key", found.user.client_key if found.user else None),
    ):
        if path and not Path(path).is_file():
            raise ConfigError(f"context {wanted!r} has the {what} {path}, and there is no such file")
    return found if found.user else found._replace(user=User())


def merged(files: list[Path]) -> dict[str, Any]:
    """One kubeconfig out of several, as kubectl merges them; paths in it are absolute."""
    found: dict[str, Any] = {name: [] for name in _LISTS}
    for file in files:
        try:
            one = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
        except yaml.YAMLError as error:
            raise ConfigError(f"{file} is not YAML: {error}") from error
        if not isinstance(one, dict):
            raise ConfigError(f"{file} is not a kubeconfig: expected a mapping with {', '.join(_LISTS)}")
        found.setdefault("current-context", None)
        found["current-context"] = found["current-context"] or one.get("current-context")
        for name in _LISTS:
            known = {entry["name"] for entry in found[name]}
            found[name] += [_usable(e, file) for e in _entries(one, name, file) if e["name"] not in known]
    return found


def _entries(one: dict[str, Any], name: str, file: Path) -> list[dict[str, Any]]:
    """The named entries of a list; what is null is empty. Raises ConfigError if they are none."""
    entries, kind = one.get(name) or [], name[:-1]
    right = isinstance(entries, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get(kind) or {}, dict)
        for entry in entries
    )
    if not right:
        raise ConfigError(f"{file} is not a kubeconfig: expected {name} as a list of `name` and `{kind}`")
    needed = {"clusters": {"server": ""}, "contexts": {"cluster": ""}}.get(name, {})
    return [{**entry, kind: {**needed, **(entry.get(kind) or {})}} for entry in entries]


def _usable(entry: dict[str, Any], file: Path) -> dict[str, Any]:
    kind = next((kind for kind in ("cluster", "user") if isinstance(entry.get(kind), dict)), None)
    if kind is None:
        return entry
    body = dict(entry[kind])
    for key in _PATHS:
        if body.get(key):
            body[key] = str(file.parent.absolute() / body[key])
    if plugin := body.get("exec"):
        body["exec"] = _plugin(plugin, file)
    return {**entry, kind: body}


def _plugin(plugin: dict[str, Any], file: Path) -> dict[str, Any]:
    version = str(plugin.get("apiVersion", ""))
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    command = str(plugin["command"])
    if os.sep in command:
        command = str(file.parent.absolute() / command)
    known = f"{_PLUGIN}/v1beta1" if version == f"{_PLUGIN}/v1" else version
    env = [*(plugin.get("env") or []), {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps(asked)}]
    return {**plugin, "apiVersion": known, "command": command, "env": env}
