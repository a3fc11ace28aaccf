"""The command line of each component: every flag, and why it isn't the default.

Pure: from where things are (`Layout`) and what was asked for (`Options`) to arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

DEFAULT_CONTROLLERS: Sequence[str] = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "validatingadmissionpolicy-status-controller",
)
"""For Jobs, StatefulSets, nodes and policies; not all of the fifty, for a small and quick cluster."""

DISRUPTION = "disruption-controller"
"""Counts what a PodDisruptionBudget allows; without it every eviction that a budget covers is refused."""
DEPLOYMENTS = ("deployment-controller", "replicaset-controller")
"""Make the pods of Deployments."""
AUTOSCALING = "horizontal-pod-autoscaler-controller"
"""Scales by metrics, which `Cluster.external_metrics` serves."""

# Also with the bodies of patches of Leases: only they tell a renewal from other news.
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Request
  verbs: [patch]
  resources:
  - group: coordination.k8s.io
    resources: [leases]
- level: Metadata
"""

# Rotation would take events away from tests that count them.
_AUDIT_LOG_MEGABYTES = 100_000
# How long a pod stays on a node that is not ready or unreachable; Kubernetes' own default is 300.
_TOLERATION_SECONDS = 30
_SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"


@dataclass(frozen=True)
class Options:
    """What a user of `Cluster` can choose."""

    kubernetes: str | None = None
    """The version, such as 1.36. Default: `DEVCLUSTER_KUBERNETES`, else `build.default_kubernetes`."""
    controllers: Sequence[str] = DEFAULT_CONTROLLERS
    """Names of the controllers that the controller manager runs."""
    further_controllers: Sequence[str] = ()
    """More of them: `DISRUPTION`, `AUTOSCALING`, or any other."""
    apiserver_gogc: int | None = None
    """By how many percent the API servers' heaps may grow between two collections; Go's default is 100."""
    token_seconds: float | None = None
    """How often the node agent replaces pods' tokens. Default: when four fifths of their life are over."""
    server_names: Sequence[str] = ()
    """More names and addresses that the API server's certificate holds good for."""
    bare_authority: bool = False
    """Certificates without key usages and key identifiers: kubectl accepts them, a strict client does not."""
    netns: bool = False
    """Every pod has a network of its own, and so all ports; needs root. Without, pods share the machine's."""
    feature_gates: Sequence[str] = ()
    """Features that are off by default: switched on in API servers, scheduler and controller manager."""
    api_versions: Sequence[str] = ()
    """Versions of APIs that are not served by default, such as `scheduling.k8s.io/v1alpha2`."""


def with_pod_groups(options: Options, kubernetes: str) -> Options:
    """The same with PodGroups of `scheduling.k8s.io`, and a scheduler that heeds them, for this version.

    Raises ValueError for one that has none.
    """
    version = tuple(int(part) for part in kubernetes.split(".")[:2])
    if version < (1, 36):
        raise ValueError(f"Kubernetes {kubernetes} has no PodGroups that schedulers place; use 1.36 or later")
    old = version < (1, 37)
    return replace(
        options,
        feature_gates=[*options.feature_gates, "GenericWorkload", *(["GangScheduling"] if old else [])],
        api_versions=[*options.api_versions, f"scheduling.k8s.io/{'v1alpha2' if old else 'v1beta1'}"],
        # Takes the finalizer off a group that no pod is in.
        further_controllers=[*options.further_controllers, "podgroup-protection-controller"],
    )


@dataclass(frozen=True)
class Layout:
    """Where the parts of one cluster are."""

    binary: Path
    state_dir: Path
    etcd_prefix: str
    etcd_port: int
    etcd_peer_port: int
    ca_file: Path
    serving_certificate: Path
    serving_key: Path
    service_account_key: Path
    token_file: Path
    audit_policy: Path
    host: str = "127.0.0.1"
    """The address on which API servers listen."""
    kubelet_client: tuple[Path, Path] | None = None
    """The certificate and key with which API servers call kubelets, and so whether nodes have kubelets.

    Then everything takes the time that it takes in production, and all controllers run.
    """


def etcd(layout: Layout) -> list[str]:
    """etcd, for data that is never needed again."""
    client = f"http://127.0.0.1:{layout.etcd_port}"
    peer = f"http://127.0.0.1:{layout.etcd_peer_port}"
    return [
        str(layout.binary),
        "etcd",
        "--name=devcluster",
        f"--data-dir={layout.state_dir / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=devcluster={peer}",
        "--unsafe-no-fsync",  # survives the death of the process, not of the machine
        "--log-level=error",
    ]


def apiserver(layout: Layout, options: Options, port: int, audit_log: Path) -> list[str]:
    """kube-apiserver on `port`. Several may share one etcd."""
    return [
        str(layout.binary),
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
        # A second guard besides the check of who owns etcd's port: two clusters never share keys.
        f"--etcd-prefix={layout.etcd_prefix}",
        f"--bind-address={layout.host}",
        f"--advertise-address={layout.host}",
        f"--secure-port={port}",
        f"--tls-cert-file={layout.serving_certificate}",
        f"--tls-private-key-file={layout.serving_key}",
        f"--client-ca-file={layout.ca_file}",
        f"--token-auth-file={layout.token_file}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={layout.service_account_key}",
        f"--service-account-signing-key-file={layout.service_account_key}",
        f"--service-cluster-ip-range={_SERVICE_RANGE}",
        *_nodes_of_the_apiserver(layout),
        *_gates(options),
        *([f"--runtime-config={_switched_on(options.api_versions)}"] if options.api_versions else []),
        "--allow-privileged",
        f"--audit-policy-file={layout.audit_policy}",
        f"--audit-log-path={audit_log}",
        "--audit-log-mode=blocking",  # an answered request is in the log
        f"--audit-log-maxsize={_AUDIT_LOG_MEGABYTES}",
        # Without it SIGTERM waits a minute for watches that do not end; with it one second (measured).
        "--shutdown-watch-termination-grace-period=1s",
        "--v=0",
    ]


def _nodes_of_the_apiserver(layout: Layout) -> list[str]:
    if layout.kubelet_client is None:
        return [
            # The Endpoints of the service `kubernetes` may not hold a loopback address.
            "--endpoint-reconciler-type=none",
            f"--default-not-ready-toleration-seconds={_TOLERATION_SECONDS}",
            f"--default-unreachable-toleration-seconds={_TOLERATION_SECONDS}",
        ]
    certificate, key = layout.kubelet_client
    return [
        f"--kubelet-client-certificate={certificate}",
        f"--kubelet-client-key={key}",
        "--kubelet-preferred-address-types=InternalIP",  # the names are not resolved
    ]


def controller_manager(layout: Layout, options: Options, port: int, kubeconfig: Path) -> list[str]:
    """kube-controller-manager; of nodes that are played it is quick to notice the loss."""
    return [
        str(layout.binary),
        "kube-controller-manager",
        *_client_flags(layout, port, kubeconfig),
        *_nodes_of_the_controller_manager(layout, options),
        *_gates(options),
        "--use-service-account-credentials",
        f"--service-account-private-key-file={layout.service_account_key}",
        f"--root-ca-file={layout.ca_file}",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--horizontal-pod-autoscaler-sync-period=1s",  # Kubernetes' own default is 15 s
    ]


def _nodes_of_the_controller_manager(layout: Layout, options: Options) -> list[str]:
    if layout.kubelet_client is not None:
        return ["--controllers=*"]
    return [
        f"--controllers={','.join([*options.controllers, *options.further_controllers])}",
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=12s",  # Kubernetes' own default is 50 s
    ]


def scheduler(layout: Layout, options: Options, port: int, kubeconfig: Path) -> list[str]:
    """kube-scheduler."""
    return [
        str(layout.binary),
        "kube-scheduler",
        *_client_flags(layout, port, kubeconfig),
        *_gates(options),
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def _gates(options: Options) -> list[str]:
    return [f"--feature-gates={_switched_on(options.feature_gates)}"] if options.feature_gates else []


def _switched_on(names: Sequence[str]) -> str:
    return ",".join(f"{name}=true" for name in names)


def _client_flags(layout: Layout, port: int, kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--authentication-tolerate-lookup-failure",
        "--leader-elect=false",  # there is one, and its Lease writes would be noise in the audit log
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={layout.serving_certificate}",
        f"--tls-private-key-file={layout.serving_key}",
        "--v=0",
    ]
