"""A control plane: its processes in their order, the way to it, and handles for every fault.

What nodes it has is its subclasses' concern: `devcluster.cluster` has some that are played by processes,
`devcluster.kubelet.cluster` some that kubelets run.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

from devcluster import commands, kubeconfig, pki
from devcluster.access import ClusterAccess
from devcluster.api import ApiClient
from devcluster.build import BINARY, KUBECTL, chosen_kubernetes, ensure_built
from devcluster.component import READY_TIMEOUT_SECONDS, Component, SupervisorClient
from devcluster.metrics import ExternalMetrics
from devcluster.ports import PortClaims, listens
from devcluster.proxy import TcpProxy
from devcluster.slow_writes import SlowWrites
from devcluster.wait import wait_for

ComponentName = Literal["etcd", "apiserver", "controller-manager", "scheduler", "nodeagent", "registry"]

_FIRST_OBJECTS_TIMEOUT_SECONDS = 60.0

_ADMIN = "admin"
_CONTROLLER_MANAGER = "system:kube-controller-manager"
_SCHEDULER = "system:kube-scheduler"
_LOOPBACK = "127.0.0.1"

_Any = TypeVar("_Any", bound="ControlPlane")


class ApiServer:
    """One more API server of a cluster, on the same objects. Made by `Cluster.second_apiserver`."""

    def __init__(self, component: Component, server: str, kubeconfig_file: Path, audit_log: Path) -> None:
        self.component = component
        self.server = server
        self.kubeconfig = kubeconfig_file
        self.audit_log = audit_log

    def stop(self) -> None:
        """End it by SIGTERM and wait; `component` offers the other faults."""
        self.component.stop()


class ControlPlane(ClusterAccess):
    """A control plane of its own, from `start` to `stop` or to the end of this process.

    Promises: it shares no port, key, file or etcd with any other cluster; when it has ended, by `stop`, by an
    exception or by the death of the process that made it (SIGKILL included), no process and no file of it is
    left. A context manager.
    """

    node_names: list[str]
    """Of the nodes that it was made with."""

    def __init__(self, state_dir: Path | None, options: commands.Options | None) -> None:
        """Nothing is started yet.

        `state_dir` must not exist: it is made by `start` and removed at the end (default: a new temporary
        one). Raises ValueError if there is no such version of Kubernetes.
        """
        self._options = options or commands.Options()
        self.kubernetes = chosen_kubernetes(self._options.kubernetes)
        self.state_dir = state_dir or Path(tempfile.gettempdir(), f"devcluster-{secrets.token_hex(6)}")
        self.kubeconfig = self.state_dir / "admin.kubeconfig"
        self.audit_log = self.state_dir / "audit.log"
        self._host = _LOOPBACK
        self._tokens = {user: secrets.token_urlsafe(24) for user in (_ADMIN, _CONTROLLER_MANAGER, _SCHEDULER)}
        self._groups = {_ADMIN: "system:masters"}
        self._ports = PortClaims()
        self._components: dict[str, Component] = {}
        self._further_apiservers: list[ApiServer] = []
        self._proxies: list[TcpProxy] = []
        self._supervisor: SupervisorClient | None = None
        self._slow_writes: SlowWrites | None = None
        self._external_metrics: ExternalMetrics | None = None
        self._before_stop: list[Callable[[], None]] = []

    # The way to it

    @property
    def admin_token(self) -> str:
        """The token of a user in system:masters."""
        return self._tokens[_ADMIN]

    @property
    def kubectl_binary(self) -> Path:
        """kubectl of the very version of the server."""
        return ensure_built(self.kubernetes) / KUBECTL

    @property
    def api(self) -> ApiClient:
        """A client of the first API server with all rights."""
        return ApiClient(self.server, self.ca_file, self.admin_token)

    @property
    def etcd_port(self) -> int:
        """The port on which etcd serves clients, without TLS."""
        return self._layout.etcd_port

    @property
    def logs_dir(self) -> Path:
        """The logs of the components, a file each."""
        return self.state_dir / "logs"

    @property
    def audit_logs(self) -> list[Path]:
        """The audit logs of all API servers that there have been."""
        return [self.audit_log, *(further.audit_log for further in self._further_apiservers)]

    @property
    def nodes_dir(self) -> Path:
        """What the nodes have on their disks."""
        return self.state_dir / "nodes"

    @property
    def pod_logs(self) -> list[Path]:
        """The folders in which pods' logs are, as `NAMESPACE_POD_UID/CONTAINER/RUN.log`."""
        return [self.nodes_dir / "logs"]

    # From start to stop

    def start(self) -> None:
        """Start everything and wait until pods can run: default service account there, nodes Ready.

        Builds the control plane first if it isn't cached (minutes). Raises ComponentFailedError or
        TimeoutError, with nothing left behind, if a part does not come up.
        """
        binary = ensure_built(self.kubernetes) / BINARY
        try:
            self._supervisor = SupervisorClient(self.state_dir)
            self.logs_dir.mkdir()
            self._start_parts(binary)
        except BaseException:
            self.stop()
            raise

    def _start_parts(self, binary: Path) -> None:
        """Start what the cluster consists of, in its order."""
        raise NotImplementedError

    def before_stop(self, look: Callable[[], None]) -> None:
        """Call `look` when the cluster is about to end, while its files are still there."""
        self._before_stop.append(look)

    def stop(self) -> None:
        """End everything and remove the state folder, though a last look at it fails. May be called twice."""
        with contextlib.ExitStack() as last:
            last.callback(self._end)
            for look in self._before_stop:
                last.callback(look)
            self._before_stop.clear()

    def _end(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        self._proxies.clear()
        if self._supervisor is not None:
            self._supervisor.end()
            self._supervisor = None
        self._ports.release()

    def __enter__(self: _Any) -> _Any:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Faults

    def component(self, name: ComponentName) -> Component:
        """A process of the cluster, to stop, kill, freeze, thaw and restart."""
        return self._components[name]

    def second_apiserver(self) -> ApiServer:
        """Start one more API server on the same etcd, as a highly available cluster has.

        It ends with the cluster, or earlier by its `stop`.
        """
        number = len(self._further_apiservers) + 2
        port = self._ports.take(self._host)
        server = f"https://{self._host}:{port}"
        audit_log = self.state_dir / f"audit-{number}.log"
        component = self._make_apiserver(f"apiserver-{number}", port, audit_log)
        component.start()
        path = self.state_dir / f"admin-{number}.kubeconfig"
        kubeconfig.write(path, server, self.ca_file, self.admin_token)
        self._further_apiservers.append(ApiServer(component, server, path, audit_log))
        return self._further_apiservers[-1]

    def new_signing_key(self) -> None:
        """Restart the first API server with a new key for service account tokens: all that there are get 401.

        The controller manager is restarted with it; that which asks for new tokens when it gets 401, as the
        node agent does, goes on by itself.
        """
        pki.signing_key(self.state_dir / "pki")
        self.component("apiserver").restart()
        self.component("controller-manager").restart()

    @contextlib.contextmanager
    def slow_writes(
        self,
        seconds: float,
        namespaces: Collection[str],
        resources: Collection[str],
    ) -> Iterator[SlowWrites]:
        """Inside of the block every write of `resources` in `namespaces` takes `seconds` longer.

        Delayed in the server, by an admission webhook, as a slow etcd or a slow webhook of the user's would;
        reads and watches are as quick as ever. `resources` are plurals; `pods/*` are the subresources. In
        force, on all API servers, from the block's first statement; `set_delay` of what is returned changes
        the delay. One block at a time.
        """
        slow_writes = self._slow_writes_of_this_cluster()
        running = [self.api] + [
            ApiClient(other.server, self.ca_file, self.admin_token)
            for other in self._further_apiservers
            if other.component.running
        ]
        with slow_writes.in_force(running, namespaces, resources):
            slow_writes.set_delay(seconds)
            yield slow_writes

    @contextlib.contextmanager
    def external_metrics(self) -> Iterator[ExternalMetrics]:
        """Inside of the block the API server serves metrics, whose values are set by what is returned.

        For a HorizontalPodAutoscaler with a metric of type External; its controller is not started by
        default, see `Options.further_controllers`. One block at a time.
        """
        metrics = self._external_metrics_of_this_cluster()
        with metrics.served():
            yield metrics

    def claim_port(self) -> int:
        """A port of 127.0.0.1 for a server that a test starts; it is kept while the cluster lives."""
        return self._ports.take()

    def add_process(
        self,
        name: str,
        arguments: list[str],
        ready: Callable[[int], bool],
        env: Mapping[str, str] | None = None,
    ) -> Component:
        """One more process of the cluster, which ends with it at the latest. It is not started yet.

        `ready` is polled with the process's id after each start.
        """
        return self._add(name, arguments, ready, env=env)

    def proxy(self, host: str = "127.0.0.1") -> TcpProxy:
        """A new proxy to the API server, listening on `host`, that can be cut; it ends with the cluster.

        The server's certificate holds good for 127.0.0.1, localhost, and `Options.server_names`.
        """
        target_host, _, target_port = self.server.removeprefix("https://").partition(":")
        proxy = TcpProxy((target_host, int(target_port)), host)
        self._proxies.append(proxy)
        return proxy

    # Parts

    def _lay_out(self, binary: Path) -> commands.Layout:
        self._authority = authority = pki.Authority(self.state_dir / "pki", bare=self._options.bare_authority)
        self.ca_file = authority.ca_file
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        addresses = dict.fromkeys([_LOOPBACK, self._host, commands.API_SERVICE_ADDRESS])
        certificate, key = authority.issue_server(
            "control-plane", [*names, *addresses, *self._options.server_names]
        )
        tokens = self.state_dir / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(
            "".join(
                f'{token},{user},{user},"{self._groups.get(user, "")}"\n'
                for user, token in self._tokens.items()
            )
        )
        audit_policy = self.state_dir / "audit-policy.yaml"
        audit_policy.write_text(commands.AUDIT_POLICY)
        self._layout = commands.Layout(
            binary=binary,
            state_dir=self.state_dir,
            etcd_prefix=f"/devcluster-{secrets.token_hex(8)}",
            etcd_port=self._ports.take(),
            etcd_peer_port=self._ports.take(),
            ca_file=authority.ca_file,
            serving_certificate=certificate,
            serving_key=key,
            service_account_key=pki.signing_key(self.state_dir / "pki"),
            token_file=tokens,
            audit_policy=audit_policy,
            host=self._host,
            kubelet_client=self._kubelet_client(),
        )
        return self._layout

    def _kubelet_client(self) -> tuple[Path, Path] | None:
        """The certificate and key with which the API server calls kubelets; None: there are none."""
        return None

    def _start_control_plane(self, layout: commands.Layout) -> None:
        etcd_port = layout.etcd_port
        self._add("etcd", commands.etcd(layout), lambda pid: listens(pid, etcd_port)).start()
        port = self._ports.take(self._host)
        self.server = f"https://{self._host}:{port}"
        kubeconfig.write(self.kubeconfig, self.server, self.ca_file, self.admin_token)
        apiserver = self._make_apiserver("apiserver", port, self.audit_log)
        apiserver.start()
        # Only now: the controller manager exits on the 403 that it gets before RBAC's own roles are there.
        clients = [self._make_controller_manager(), self._make_scheduler()]
        for client in clients:
            client.launch()
        for client in clients:
            client.wait_ready()
        wait_for(
            lambda: (
                self.api.is_ok("/api/v1/namespaces/default/serviceaccounts/default")
                and self.api.is_ok("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
            ),
            _FIRST_OBJECTS_TIMEOUT_SECONDS,
            "the namespace default has its service account and root certificate",
        )

    def _make_apiserver(self, name: str, port: int, audit_log: Path) -> Component:
        arguments = commands.apiserver(self._layout, self._options, port, audit_log)
        client = ApiClient(f"https://{self._host}:{port}", self.ca_file, self.admin_token)
        gogc = self._options.apiserver_gogc
        env = {} if gogc is None else {"GOGC": str(gogc)}
        return self._add(name, arguments, lambda pid: listens(pid, port) and client.is_ok("/readyz"), env=env)

    def _make_controller_manager(self) -> Component:
        port = self._ports.take()
        path = self._client_kubeconfig("controller-manager", _CONTROLLER_MANAGER)
        arguments = commands.controller_manager(self._layout, self._options, port, path)
        return self._add("controller-manager", arguments, self._healthz(port))

    def _make_scheduler(self) -> Component:
        port = self._ports.take()
        path = self._client_kubeconfig("scheduler", _SCHEDULER)
        arguments = commands.scheduler(self._layout, self._options, port, path)
        return self._add("scheduler", arguments, self._healthz(port))

    def _client_kubeconfig(self, name: str, user: str) -> Path:
        path = self.state_dir / f"{name}.kubeconfig"
        return kubeconfig.write(path, self.server, self.ca_file, self._tokens[user])

    def _healthz(self, port: int) -> Callable[[int], bool]:
        client = ApiClient(f"https://127.0.0.1:{port}", self.ca_file)
        return lambda pid: listens(pid, port) and client.is_ok("/healthz")

    def _nodes_ready(self) -> bool:
        answer = self.api.request("GET", "/api/v1/nodes")
        if not answer.ok:
            return False
        ready = {
            node["metadata"]["name"]
            for node in answer.json()["items"]
            for condition in node["status"].get("conditions", ())
            if condition["type"] == "Ready" and condition["status"] == "True"
        }
        return ready.issuperset(self.node_names)

    def _slow_writes_of_this_cluster(self) -> SlowWrites:
        if self._slow_writes is None:
            port = self._ports.take()
            url = f"https://127.0.0.1:{port}"
            client = ApiClient(url, self.ca_file)
            self._start_server(
                "slow-writes",
                "webhook",
                client,
                port,
                self._layout.serving_certificate,
                self._layout.serving_key,
            )
            self._slow_writes = SlowWrites(self.api, client, url, self.ca_file)
        return self._slow_writes

    def _external_metrics_of_this_cluster(self) -> ExternalMetrics:
        if self._external_metrics is None:
            port = self._ports.take()
            # The API server verifies the name of the Service, wherever that points to.
            hosts = [ExternalMetrics.SERVER_NAME, "127.0.0.1"]
            certificate, key = self._authority.issue_server("metrics", hosts)
            control = ApiClient(f"https://127.0.0.1:{port}", self.ca_file)
            self._start_server("metrics", "metrics_server", control, port, certificate, key)
            self._external_metrics = ExternalMetrics(self.api, control, port, self.ca_file)
        return self._external_metrics

    def _start_server(
        self, name: str, module: str, client: ApiClient, port: int, certificate: Path, key: Path
    ) -> None:
        """Start one of our own servers (``tls_server``) as a component."""
        server = self._add(
            name,
            [
                sys.executable,
                "-m",
                f"devcluster.{module}",
                f"--port={port}",
                f"--certificate={certificate}",
                f"--key={key}",
            ],
            lambda pid: listens(pid, port) and client.is_ok("/healthz"),
        )
        server.start()

    def _add(
        self,
        name: str,
        arguments: list[str],
        ready: Callable[[int], bool],
        *,
        env: Mapping[str, str] | None = None,
        ready_timeout: float = READY_TIMEOUT_SECONDS,
        grace: float = 0.0,
    ) -> Component:
        if self._supervisor is None:
            raise RuntimeError("the cluster is not running")
        component = Component(
            name,
            self._supervisor,
            arguments,
            self.logs_dir / f"{name}.log",
            ready,
            env=env,
            ready_timeout=ready_timeout,
            grace=grace,
        )
        self._components[name] = component
        return component

    def _kubectl_environment(self) -> dict[str, str]:
        # Its discovery cache would otherwise stay behind in the user's home.
        return {**super()._kubectl_environment(), "KUBECACHEDIR": str(self.state_dir / "kubectl-cache")}
