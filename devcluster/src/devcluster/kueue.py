"""Kueue's own manager, built from its Go module, as one more process of a cluster.

Its resource definitions, webhooks and roles are those of the module, named as its chart names them. It runs
with the rights of its own service account. The API server reaches its webhooks through a Service of type
ExternalName, since Endpoints refuse loopback addresses.

Kueue makes its certificates itself, into a Secret from which a kubelet would bring them into its container:
here they are copied while it starts. (Without its own management of certificates it reads a folder below
/etc.)
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from devcluster import kubeconfig
from devcluster.api import ApiClient
from devcluster.component import Component
from devcluster.control_plane import ControlPlane
from devcluster.go_tool import GoModule, module_source

VERSION = os.environ.get("DEVCLUSTER_KUEUE", "v0.19.2")
"""Of its module; `v0.18.3` runs here, too."""
API = "/apis/kueue.x-k8s.io/v1beta2"
NAMESPACE = "kueue-system"

_MODULE = "sigs.k8s.io/kueue"
_KUEUE = GoModule(
    "kueue",
    _MODULE,
    VERSION,
    programs=("cmd/kueue",),
    # A library that only an experiment of Kueue's needs, and that has no published version.
    tags=("exclude_scheduler_library",),
    minutes="some 15 minutes",
)
_PREFIX = "kueue-"
_ACCOUNT = f"{_PREFIX}controller-manager"
_SERVICE = f"{_PREFIX}webhook-service"
_SECRET = f"{_PREFIX}webhook-server-cert"
_TOKEN_SECONDS = 24 * 3600
_USED_ROLES = re.compile(r"service_account|role|leader|manager_")
"""Of Kueue's folder of rights those that the manager itself needs, by file name."""
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_FOR_PODS = re.compile(r"[mv](pod|deployment|statefulset)\.kb\.io")
"""Webhooks that Kueue's chart keeps away from the namespaces of the system."""


def ensure_kueue() -> Path:
    """The binary `kueue`; builds it if it isn't cached. Raises RuntimeError if the build fails."""
    return _KUEUE.ensure() / "kueue"


class Kueue:
    """The manager of one cluster, from `start` until the cluster ends; `component` offers its faults.

    `config` is merged over what it needs to run here, in the words of its Configuration.
    """

    component: Component

    def __init__(self, cluster: ControlPlane, config: Mapping[str, Any] | None = None) -> None:
        self._cluster = cluster
        self._api: ApiClient = cluster.api
        self._config = dict(config or {})
        self._folder = cluster.state_dir / "kueue"
        self._certificates = self._folder / "certificates"
        self._port, self._health_port = cluster.claim_port(), cluster.claim_port()

    def start(self) -> None:
        """Install it, start it, and wait until its webhooks answer (20 s).

        Builds the binary first if it isn't cached (minutes). Raises ComponentFailedError if it ends or does
        not get ready, RuntimeError for an object that the API server refuses.
        """
        binary = ensure_kueue()
        self._certificates.mkdir(parents=True)
        self.install()
        self._write_kubeconfig()
        self._write_configuration(self._config)
        self.component = self._cluster.add_process(
            "kueue",
            [
                str(binary),
                f"--config={self._folder / 'config.yaml'}",
                f"--kubeconfig={self._folder / 'kubeconfig'}",
                "--zap-log-level=2",
            ],
            lambda _pid: self._is_ready(),
            env={"GOMAXPROCS": "2"},
        )
        self.component.start()

    def install(self) -> None:
        """Create what is not there of all that it needs in the cluster; `start` does it.

        Raises RuntimeError for an object that the API server refuses.
        """
        for path, body in _objects(module_source(_MODULE, VERSION) / "config" / "components", self._port):
            self._create(path, body)

    @contextlib.contextmanager
    def configured(self, config: Mapping[str, Any]) -> Iterator[None]:
        """Inside of the block it runs with this in place of its `config`. It is restarted before and after.

        Raises ComponentFailedError as `start` does.
        """
        self._write_configuration(config)
        self.component.restart()
        try:
            yield
        finally:
            self._write_configuration(self._config)
            self.component.restart()

    def _create(self, path: str, body: Mapping[str, Any]) -> None:
        answer = self._api.request("POST", path, body, timeout=30)
        if not answer.ok and answer.status != 409:
            name = body["metadata"]["name"]
            raise RuntimeError(f"Kueue: POST {path} {name}: {answer.status} {answer.text[:600]}")

    def _write_kubeconfig(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{_ACCOUNT}/token"
        answer = self._api.request("POST", path, {"spec": {"expirationSeconds": _TOKEN_SECONDS}})
        if not answer.ok:
            raise RuntimeError(f"Kueue: POST {path}: {answer.status} {answer.text[:600]}")
        token = answer.json()["status"]["token"]
        kubeconfig.write(self._folder / "kubeconfig", self._cluster.server, self._cluster.ca_file, token)

    def _write_configuration(self, config: Mapping[str, Any]) -> None:
        default = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": _SERVICE,
                "webhookSecretName": _SECRET,
            },
            "clientConnection": {"qps": 300, "burst": 500},
            "featureGates": {"VisibilityOnDemand": False},
            "integrations": {"frameworks": ["batch/job"]},
        }
        (self._folder / "config.yaml").write_text(yaml.safe_dump({**default, **config}))

    def _is_ready(self) -> bool:
        """Whether it says so, and a webhook of its is called and answers."""
        self._copy_certificates()
        if not ApiClient(f"http://127.0.0.1:{self._health_port}").is_ok("/readyz"):
            return False
        flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "a"}}
        return self._api.request("POST", f"{API}/resourceflavors?dryRun=All", flavor).ok

    def _copy_certificates(self) -> None:
        answer = self._api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{_SECRET}")
        for name, value in ((answer.json().get("data") if answer.ok else None) or {}).items():
            file, content = self._certificates / name, base64.b64decode(value)
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)


def _objects(components: Path, port: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """All that the manager needs in the cluster, with the path that each is posted to, in this order."""
    yield "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}
    inside = f"/api/v1/namespaces/{NAMESPACE}"
    yield f"{inside}/secrets", {"metadata": {"name": _SECRET}}
    external = {"type": "ExternalName", "externalName": "localhost"}
    yield f"{inside}/services", {"metadata": {"name": _SERVICE}, "spec": external}
    for definition in _definitions(components / "crd", port):
        yield "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition
    for webhooks in _documents(components / "webhook" / "manifests.yaml"):
        yield (
            f"/apis/admissionregistration.k8s.io/v1/{webhooks['kind'].lower()}s",
            _prefixed_webhooks(webhooks, port),
        )
    for one in _rights(components / "rbac"):
        yield _path_of_right(one), one


def _documents(file: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


def _definitions(folder: Path, port: int) -> Iterator[dict[str, Any]]:
    """The resource definitions, with the conversion that the module keeps in patches."""
    (kustomization,) = _documents(folder / "kustomization.yaml")
    conversions = {}
    for patch in kustomization.get("patches", []):
        (changed,) = _documents(folder / patch["path"])
        conversions[changed["metadata"]["name"]] = changed["spec"]["conversion"]
    for file in kustomization["resources"]:
        (definition,) = _documents(folder / file)
        conversion = conversions.get(definition["metadata"]["name"])
        if conversion is not None:
            _to_service(conversion["webhook"]["clientConfig"], port)
            definition["spec"]["conversion"] = conversion
        definition.pop("status", None)
        yield definition


def _to_service(client_config: dict[str, Any], port: int) -> None:
    client_config["service"].update(namespace=NAMESPACE, name=_SERVICE, port=port)


def _prefixed_webhooks(configuration: dict[str, Any], port: int) -> dict[str, Any]:
    configuration["metadata"]["name"] = _PREFIX + configuration["metadata"]["name"]
    for webhook in configuration["webhooks"]:
        _to_service(webhook["clientConfig"], port)
        if _FOR_PODS.fullmatch(webhook["name"]):
            off = {
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": ["kube-system", NAMESPACE],
            }
            webhook["namespaceSelector"] = {"matchExpressions": [off]}
    return configuration


def _rights(folder: Path) -> Iterator[dict[str, Any]]:
    (kustomization,) = _documents(folder / "kustomization.yaml")
    for file in kustomization["resources"]:
        if _USED_ROLES.match(file):
            for one in _documents(folder / file):
                yield _prefixed_right(one)


def _prefixed_right(one: dict[str, Any]) -> dict[str, Any]:
    one["metadata"]["name"] = _PREFIX + one["metadata"]["name"]
    if one["kind"] in ("Role", "RoleBinding", "ServiceAccount"):
        one["metadata"]["namespace"] = NAMESPACE
    for subject in one.get("subjects") or ():
        subject.update(name=_PREFIX + subject["name"], namespace=NAMESPACE)
    if "roleRef" in one:
        one["roleRef"]["name"] = _PREFIX + one["roleRef"]["name"]
    for rule in one.get("rules") or ():
        names = rule.get("resourceNames")
        if names:
            rule["resourceNames"] = [_prefixed_name(name) for name in names]
    return one


def _prefixed_name(name: str) -> str:
    own = "webhook-configuration" in name or name.startswith("webhook-server")
    return _PREFIX + name if own else name


def _path_of_right(one: Mapping[str, Any]) -> str:
    kind = f"{one['kind'].lower()}s"
    if one["kind"] == "ServiceAccount":
        return f"/api/v1/namespaces/{NAMESPACE}/{kind}"
    scope = f"/namespaces/{NAMESPACE}" if one["kind"] in ("Role", "RoleBinding") else ""
    return f"{_RBAC}{scope}/{kind}"
