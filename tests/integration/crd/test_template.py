"""The pod template in a real API server: whatever Kubernetes knows of a pod is kept as it was written."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml

from crds import generate
from devcluster.access import ClusterAccess, KubectlError
from devcluster.build import default_kubernetes
from devcluster.cluster import Cluster
from tests.integration.crd.jobs import CONTAINER, apply, get, manifest

pytestmark = pytest.mark.cluster

RICH_TEMPLATE: dict[str, Any] = yaml.safe_load(
    """
metadata:
  labels: {app: digits, team.example.com/name: research}
  annotations: {kubectl.kubernetes.io/default-container: train}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 60
  activeDeadlineSeconds: 100000
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  enableServiceLinks: false
  automountServiceAccountToken: false
  shareProcessNamespace: true
  hostAliases: [{ip: 10.1.2.3, hostnames: [storage]}]
  imagePullSecrets: [{name: registry}]
  nodeSelector: {gpu: h100}
  schedulerName: other-scheduler
  securityContext:
    runAsUser: 1000
    runAsNonRoot: true
    fsGroup: 2000
    supplementalGroups: [3000]
    seccompProfile: {type: RuntimeDefault}
    sysctls: [{name: kernel.shm_rmid_forced, value: "1"}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: zone, operator: In, values: [a, b]}]
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 5
        preference: {matchFields: [{key: metadata.name, operator: NotIn, values: [bad]}]}
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 1
        podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: digits}}}
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
  topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchExpressions: [{key: app, operator: Exists}]}
  initContainers:
  - {name: prepare, image: busybox, command: [sh, -c, "true"]}
  - name: proxy
    image: proxy
    restartPolicy: Always
    startupProbe: {tcpSocket: {port: 8080}, failureThreshold: 30}
  containers:
  - name: train
    image: train
    imagePullPolicy: IfNotPresent
    command: [torchrun, train.py]
    args: [--epochs=3]
    workingDir: /workspace
    env:
    - {name: PLAIN, value: "1"}
    - {name: NODE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: "1"}}}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: token, key: token, optional: true}}}
    envFrom:
    - {prefix: CONF_, configMapRef: {name: conf, optional: true}}
    ports:
    - {name: metrics, containerPort: 9090, protocol: TCP}
    - {name: metrics-udp, containerPort: 9090, protocol: UDP}
    resources:
      requests: {cpu: 2, memory: 1Gi, ephemeral-storage: 500M}
      limits: {cpu: "2", memory: 1073741824, nvidia.com/gpu: 8, rdma/hca: "1", hugepages-2Mi: 4Mi}
    lifecycle:
      preStop: {exec: {command: [sleep, "1"]}}
    livenessProbe: {httpGet: {path: /healthz, port: metrics, scheme: HTTP}, periodSeconds: 10}
    readinessProbe: {grpc: {port: 9000, service: ready}}
    securityContext:
      capabilities: {add: [IPC_LOCK], drop: [ALL]}
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
    volumeMounts:
    - {name: shm, mountPath: /dev/shm}
    - {name: code, mountPath: /workspace, readOnly: true}
    - {name: data, mountPath: /data, subPath: train, mountPropagation: None}
    - {name: tokens, mountPath: /var/run/tokens}
    volumeDevices:
    - {name: block, devicePath: /dev/block}
    terminationMessagePolicy: FallbackToLogsOnError
  - {name: log-shipper, image: log-shipper}
  volumes:
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
  - {name: code, configMap: {name: code, defaultMode: 420, items: [{key: train.py, path: train.py}]}}
  - {name: data, persistentVolumeClaim: {claimName: data, readOnly: true}}
  - name: block
    ephemeral:
      volumeClaimTemplate:
        metadata: {labels: {app: digits}}
        spec:
          accessModes: [ReadWriteOnce]
          volumeMode: Block
          storageClassName: fast
          resources: {requests: {storage: 10Gi}}
  - name: tokens
    projected:
      defaultMode: 420
      sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607, audience: storage}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
      - configMap: {name: ca, items: [{key: ca.crt, path: ca.crt}]}
  - {name: host, hostPath: {path: /tmp, type: Directory}}
  - {name: nfs, nfs: {server: 10.0.0.1, path: /data}}
  - {name: bucket, csi: {driver: bucket.example.com, volumeAttributes: {bucket: data}}}
"""
)


def test_a_rich_template_is_kept_to_the_letter(cluster: ClusterAccess, namespace: str) -> None:
    apply(cluster, namespace, manifest(template=RICH_TEMPLATE))
    assert get(cluster, namespace)["spec"]["template"] == RICH_TEMPLATE


def test_the_rich_template_is_a_pod_that_kubernetes_accepts(cluster: ClusterAccess, namespace: str) -> None:
    """Else the test above would prove less than it seems to."""
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(RICH_TEMPLATE)}
    pod["metadata"]["name"] = "rich"
    cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", input=json.dumps(pod))


def test_metadata_that_a_job_takes_is_taken(cluster: ClusterAccess, namespace: str) -> None:
    """As `kubectl create job --dry-run=client -o yaml` and people write it; the pods get the finalizers."""
    meta = {
        "name": "digits",
        "generateName": "digits-",
        "namespace": "elsewhere",
        "creationTimestamp": None,
        "finalizers": ["example.com/accounting"],
        "labels": {"app": "digits"},
    }
    template = {"metadata": meta, "spec": {"containers": [CONTAINER]}}
    a_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "digits"}}
    job_template = copy.deepcopy(template)
    job_template["spec"]["restartPolicy"] = "Never"  # type: ignore[index]
    body = json.dumps({**a_job, "spec": {"template": job_template}})
    cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", input=body)
    apply(cluster, namespace, manifest(template=template))
    kept = get(cluster, namespace)["spec"]["template"]["metadata"]
    assert kept["finalizers"] == meta["finalizers"]
    assert kept["name"] == "digits"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a number with a fraction": ({"resources": {"requests": {"cpu": 0.5}}}, "requests.cpu"),
    "the same variable twice": (
        {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "env.1.: Duplicate value: ",
    ),
    "the same port twice": (
        {"ports": [{"containerPort": 80}, {"containerPort": 80}]},
        "ports.1.: Duplicate value: ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_though_a_job_takes_it_is_in_the_fields_text(
    cluster: ClusterAccess, namespace: str, name: str
) -> None:
    """The schema cannot take it: CEL would not compare a quantity of any type, and lists have keys."""
    fields, why = REFUSED[name]
    container = {**CONTAINER, **fields}
    pod = {"restartPolicy": "Never", "containers": [container]}
    a_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "digits"}}
    body = json.dumps({**a_job, "spec": {"template": {"spec": pod}}})
    cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", input=body)
    with pytest.raises(KubectlError, match=why) as refused:
        apply(cluster, namespace, manifest(template={"spec": {"containers": [container]}}))
    print(refused.value)
    said = cluster.kubectl("explain", "elasticjob.spec.template").stdout
    assert "quantity with a fraction" in " ".join(said.split())


def test_a_port_without_protocol_is_tcp(cluster: ClusterAccess, namespace: str) -> None:
    """The one default in the template: the protocol is a key of the list of ports."""
    ports = [{"containerPort": 80}]
    apply(cluster, namespace, manifest(template={"spec": {"containers": [{**CONTAINER, "ports": ports}]}}))
    container = get(cluster, namespace)["spec"]["template"]["spec"]["containers"][0]
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


@pytest.mark.devcluster
def test_the_generated_part_is_what_this_version_of_kubernetes_gives(devcluster: Cluster) -> None:
    if devcluster.kubernetes != default_kubernetes():
        pytest.skip(f"the pod of the definition is that of Kubernetes {default_kubernetes()}")
    openapi = json.loads(devcluster.kubectl("get", "--raw", "/openapi/v3/api/v1").stdout)
    text = generate.CRD_FILE.read_text()
    assert generate.splice(text, generate.template_properties(openapi)) == text, (
        "run: kubectl get --raw /openapi/v3/api/v1 | python crds/generate.py"
    )
