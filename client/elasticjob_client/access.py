"""Which cluster, user and namespace: as kubectl finds them.

lightkube reads a single kubeconfig and knows credential plugins up to v1beta1. Here is what is missing for
kubectl's users: several files in KUBECONFIG, whose first mention of a name wins; ``proxy-url`` and
``tls-server-name``; and plugins of v1, which read from the environment what is asked of them.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.core.exceptions import ConfigError

from elasticjob_client import proxy
from elasticjob_client.decoding import ready
from elasticjob_client.names import check_name
from elasticjob_client.urls import without_user

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_DATA = ("certificate-authority-data", "client-certificate-data", "client-key-data")
_REFUSED = ("as", "as-uid", "as-groups", "as-user-extra")
"""A user's fields for impersonation: the request is made in the name of another user."""
_KINDS: dict[str, type[msgspec.Struct]] = {"cluster": Cluster, "user": User, "context": Context}
_LISTS = ("clusters", "contexts", "users")
_PLUGIN = "client.authentication.k8s.io"


class Access(NamedTuple):
    """How a cluster is reached. ``source``: the kubeconfig, as errors name it."""

    config: SingleConfig
    source: str
    proxy: str | None = None
    server_name: str | None = None


def configuration(kubeconfig: str | None = None, context: str | None = None) -> SingleConfig:
    """The context that is asked for, or the current one; in a pod without a kubeconfig, its service account.

    Raises lightkube's ConfigError with what is missing.
    """
    return access(kubeconfig, context).config


def access(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Add what lightkube leaves out. Raises ConfigError, which names the file and the field."""
    given = kubeconfig or os.environ.get("KUBECONFIG", "")
    files = [Path(one).expanduser() for one in given.split(os.pathsep) if one]
    for file in files:
        if file.is_dir():
            raise ConfigError(f"{file} is a directory: expected a kubeconfig")
    if kubeconfig and not files[0].is_file():
        raise ConfigError(f"there is no file {kubeconfig}")
    files = [file for file in files or [Path("~/.kube/config").expanduser()] if file.is_file()]
    if not files:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return Access(_chosen(KubeConfig.from_service_account(), context), "the pod's service account")
        raise ConfigError(
            f"there is no kubeconfig: expected {given or '~/.kube/config'}; "
            "set KUBECONFIG or --kubeconfig to the file that leads to your cluster"
        )
    whole = merged(files)
    wanted = context or whole["current-context"]
    found = _only(whole, wanted)
    config = _chosen(KubeConfig.from_dict(found), context)
    cluster: dict[str, Any] = next((one["cluster"] for one in found["clusters"]), {})
    return Access(
        config,
        ", ".join(map(str, files)),
        proxy=cluster.get("proxy-url") or None,
        server_name=cluster.get("tls-server-name") or None,
    )


def _only(whole: dict[str, Any], wanted: str | None) -> dict[str, Any]:
    """What a context needs, made usable: what is wrong with others does not matter."""
    own = next((one for one in whole["contexts"] if one["name"] == wanted), None)
    if own is not None:
        own = _usable(own, "context")
    needed = own["context"] if own else {}
    return {
        "current-context": whole["current-context"],
        "contexts": [
            own if one["name"] == wanted else {**one, "context": {"cluster": ""}} for one in whole["contexts"]
        ],
        "clusters": [
            _usable(one, "cluster") for one in whole["clusters"] if one["name"] == needed.get("cluster")
        ],
        "users": [_usable(one, "user") for one in whole["users"] if one["name"] == needed.get("user")],
    }


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
            f"the server of cluster {entry.cluster!r} is {without_user(found.cluster.server)!r}: "
            "expected https://HOST:PORT"
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
    """One kubeconfig out of several, as kubectl merges them; each entry has the ``file`` it is from."""
    found: dict[str, Any] = {"current-context": None, **{name: [] for name in _LISTS}}
    for file in files:
        one = _read(file)
        current = one.get("current-context")
        if current is not None and not isinstance(current, str):
            raise ConfigError(f"{file}: current-context is {current!r}: expected the name of a context")
        found["current-context"] = found["current-context"] or current
        for name in _LISTS:
            known = {entry["name"] for entry in found[name]}
            found[name] += [e for e in _entries(one, name, file) if e["name"] not in known]
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        one = yaml.load(file.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except yaml.YAMLError as error:  # not its text, which may have a line with a token
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"{file} is not YAML{where}: {getattr(error, 'problem', None) or 'bad text'}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a kubeconfig: it is not text in UTF-8") from None
    if not isinstance(one, dict):
        raise ConfigError(f"{file} is not a kubeconfig: expected a mapping with {', '.join(_LISTS)}")
    return one


def _entries(one: dict[str, Any], name: str, file: Path) -> list[dict[str, Any]]:
    """The named entries of a list; null is an empty list. Raises ConfigError for anything else."""
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
    return [{**entry, kind: {**needed, **(entry.get(kind) or {})}, "file": file} for entry in entries]


def _usable(entry: dict[str, Any], kind: str) -> dict[str, Any]:
    """An entry with absolute paths and a plugin that lightkube knows. Raises ConfigError for wrong fields."""
    file, body = entry["file"], dict(entry[kind])
    where = f"{file}: {kind} {entry['name']!r}"
    for key in ("proxy-url", "tls-server-name", *_PATHS):
        if body.get(key) is not None and not isinstance(body[key], str):
            raise ConfigError(f"{where}: {key} is not text")
    for key in _PATHS:
        if body.get(key):
            body[key] = str(file.parent.absolute() / body[key])
    if kind == "user":
        for key in _REFUSED:
            if body.get(key):
                raise ConfigError(f"{where}: {key} is not supported: another user cannot be impersonated")
        if body.get("exec") is not None:
            body["exec"] = _plugin(body["exec"], file, where)
    try:
        msgspec.convert(body, ready(_KINDS[kind]))
        if kind == "context" and body.get("namespace"):
            check_name("a namespace", body["namespace"])
    except ValueError as error:  # msgspec's too
        raise ConfigError(f"{where}: {error}") from None
    if kind == "cluster" and body.get("proxy-url"):
        proxy.checked(body["proxy-url"], where)
    for key in _DATA:
        try:
            base64.b64decode(body.get(key) or "")
        except ValueError:
            raise ConfigError(f"{where}: {key} is not base64") from None
    return {**entry, kind: body}


def _plugin(plugin: Any, file: Path, where: str) -> dict[str, Any]:
    if not isinstance(plugin, dict):
        raise ConfigError(f"{where}: exec is not a mapping: expected one with apiVersion and command")
    if not isinstance(plugin.get("command"), str) or not plugin["command"]:
        raise ConfigError(f"{where}: exec has no command: expected the login program")
    if not isinstance(plugin.get("env") or [], list):
        raise ConfigError(f"{where}: env of exec is not a list: expected one of `name` and `value`")
    version = str(plugin.get("apiVersion", ""))
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    command = plugin["command"]
    if os.sep in command:
        command = str(file.parent.absolute() / command)
    known = f"{_PLUGIN}/v1beta1" if version == f"{_PLUGIN}/v1" else version
    env = [*(plugin.get("env") or []), {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps(asked)}]
    return {**plugin, "apiVersion": known, "command": command, "env": env}
