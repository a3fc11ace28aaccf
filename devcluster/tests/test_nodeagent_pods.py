"""What a pod sees under the node agent, what its status says, and in which order its containers run."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_pods import SECONDS, SLOW_TERM, Object, Pods, is_ready, main_state, python, restarts
from devcluster.wait import wait_for

pytestmark = pytest.mark.devcluster


# What a pod sees, what its status says


def test_exit_code_is_in_the_status(pods: Pods) -> None:
    pods.run("good", ["sh", "-c", "echo out; echo err >&2"])
    pods.run("bad", ["sh", "-c", "exit 3"], node=1)
    good = pods.wait_phase("good", "Succeeded")
    assert main_state(good["status"], "terminated")["reason"] == "Completed"
    assert pods.log("good") == "out\nerr\n"
    ended = main_state(pods.wait_phase("bad", "Failed")["status"], "terminated")
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert ended["containerID"].startswith("devcluster://")


def test_end_of_a_failed_container_s_log_is_in_its_status_where_it_asks_for_that(pods: Pods) -> None:
    asks: dict[str, Any] = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    pods.run("fails", ["sh", "-c", "seq 1 1000; echo no such file >&2; exit 3"], **asks)
    pods.run("does-not", ["sh", "-c", "echo done"], **asks)
    pods.run("does-not-ask", ["sh", "-c", "echo no such file; exit 3"])
    said = main_state(pods.wait_phase("fails", "Failed")["status"], "terminated")["message"]
    assert said.splitlines() == [*map(str, range(922, 1001)), "no such file"]
    assert "message" not in main_state(pods.wait_phase("does-not", "Succeeded")["status"], "terminated")
    assert "message" not in main_state(pods.wait_phase("does-not-ask", "Failed")["status"], "terminated")


def test_death_by_signal_is_128_and_the_signal(pods: Pods) -> None:
    pods.run("victim", ["sleep", "1000"])
    pods.wait_phase("victim", "Running")
    pods.agent.client.kill_container(pods.namespace, "victim", signal=signal.SIGKILL)
    assert main_state(pods.wait_phase("victim", "Failed")["status"], "terminated")["exitCode"] == 137


def test_command_that_does_not_exist(pods: Pods) -> None:
    pods.run("typo", ["no-such-program"])
    ended = main_state(pods.wait_phase("typo", "Failed")["status"], "terminated")
    assert ended["reason"] == "StartError"
    assert "no-such-program" in ended["message"]


def test_environment_and_downward_api(pods: Pods) -> None:
    api, path = pods.agent.cluster.api, f"/api/v1/namespaces/{pods.namespace}/configmaps"
    assert api.request("POST", path, {"metadata": {"name": "settings"}, "data": {"COLOUR": "red"}}).ok
    fields = {
        "NAME": "metadata.name",
        "NAMESPACE": "metadata.namespace",
        "UID_": "metadata.uid",
        "LABEL": "metadata.labels['app']",
        "NOTE": "metadata.annotations['note']",
        "NODE": "spec.nodeName",
        "ACCOUNT": "spec.serviceAccountName",
        "IP": "status.podIP",
        "IPS": "status.podIPs",
        "HOST": "status.hostIP",
    }
    downward = [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()]
    code = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    main = {
        "name": "main",
        "image": "any",
        "command": [*python(code), "$(NAME)", "$$(NAME)", "$(UNKNOWN)"],
        "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "MY_"}],
        "env": [
            *downward,
            {"name": "GREETING", "value": "hello $(NAME)"},
        ],
    }
    pods.create("env", [main], metadata={"labels": {"app": "x"}, "annotations": {"note": "y z"}})
    pod = pods.wait_phase("env", "Succeeded")
    env, arguments = json.loads(pods.log("env"))
    expected = {
        "MY_COLOUR": "red",
        "NAME": "env",
        "NAMESPACE": pods.namespace,
        "UID_": pod["metadata"]["uid"],
        "LABEL": "x",
        "NOTE": "y z",
        "NODE": pods.agent.nodes[0],
        "ACCOUNT": "default",
        "IP": pod["status"]["podIP"],
        "IPS": pod["status"]["podIP"],
        "HOST": pod["status"]["hostIP"],
        "GREETING": "hello env",
        "HOSTNAME": "env",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert arguments == ["env", "$(NAME)", "$(UNKNOWN)"]
    assert "PYTEST_CURRENT_TEST" not in env, "the agent's own environment is not the pod's"


_REVIEW = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
token = open(folder + "/token").read()
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
request = urllib.request.Request(
    f"https://{host}:{port}/apis/authentication.k8s.io/v1/selfsubjectreviews",
    data=b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}',
    headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"},
)
context = ssl.create_default_context(cafile=folder + "/ca.crt")
answer = json.load(urllib.request.urlopen(request, context=context, timeout=10))
print(json.dumps([open(folder + "/namespace").read(), answer["status"]["userInfo"]]))
"""


def test_token_is_bound_to_the_pod_and_valid(pods: Pods) -> None:
    pods.run("who", python(_REVIEW))
    pod = pods.wait_phase("who", "Succeeded")
    namespace, user = json.loads(pods.log("who"))
    assert namespace == pods.namespace
    assert user["username"] == f"system:serviceaccount:{pods.namespace}:default"
    assert user["extra"]["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]


def test_volumes(pods: Pods, tmp_path: Path) -> None:
    """ConfigMap, Secret, downward API and an emptyDir that containers share; nothing is left on the host."""
    api, base = pods.agent.cluster.api, f"/api/v1/namespaces/{pods.namespace}"
    config_map = {"metadata": {"name": "files"}, "data": {"a.txt": "A", "b.txt": "B"}}
    assert api.request("POST", f"{base}/configmaps", config_map).ok
    assert api.request("POST", f"{base}/secrets", {"metadata": {"name": "key"}, "stringData": {"k": "S"}}).ok
    root = tmp_path / "mounts"
    label = {"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}}
    volumes: dict[str, Object] = {
        "config": {"configMap": {"name": "files", "items": [{"key": "a.txt", "path": "deep/a"}]}},
        "secret": {"secret": {"secretName": "key"}},
        "labels": {"downwardAPI": {"items": [label]}},
        "scratch": {"emptyDir": {}},
    }
    mounts = [{"name": name, "mountPath": f"{root}/{name}"} for name in volumes]
    write = {"name": "write", "image": "any", "command": ["sh", "-c", f"echo from-init > {root}/scratch/x"]}
    read = f"cd {root}; cat config/deep/a secret/k labels/app scratch/x"
    pods.run(
        "volumes",
        ["sh", "-c", read],
        metadata={"labels": {"app": "L"}},
        volumes=[{"name": name, **source} for name, source in volumes.items()],
        volumeMounts=mounts,
        initContainers=[write | {"volumeMounts": mounts}],
    )
    pods.wait_phase("volumes", "Succeeded")
    assert pods.log("volumes") == "ASLfrom-init\n"
    pods.delete("volumes")
    pods.wait_gone("volumes")
    assert not any(root.glob("*/*")), "the volumes are gone"


def test_mount_points_that_do_not_exist_are_the_containers_own(pods: Pods) -> None:
    volumes = [{"name": "d", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "d", "mountPath": f"/{pods.namespace}/deep"}, {"name": "m", "mountPath": "/dev/shm"}]
    script = (
        f"touch /{pods.namespace}/deep/x /dev/shm/x; ls /{pods.namespace}/deep /dev/shm; ls /usr/bin | wc -l"
    )
    pods.run("mounts", ["sh", "-c", script], volumes=volumes, volumeMounts=mounts)
    pods.wait_phase("mounts", "Succeeded")
    *listing, programs = pods.log("mounts").split()
    assert listing == ["/dev/shm:", "x", f"/{pods.namespace}/deep:", "x"]
    assert int(programs) == len(os.listdir("/usr/bin")), "the rest of the file system is as it was"
    assert not Path(f"/{pods.namespace}").exists()


def test_missing_config_map_holds_the_pod(pods: Pods) -> None:
    pods.run("waits", ["true"], envFrom=[{"configMapRef": {"name": "later"}}])
    assert "'later'" in pods.wait_waiting("waits", "CreateContainerConfigError")
    path = f"/api/v1/namespaces/{pods.namespace}/configmaps"
    assert pods.agent.cluster.api.request("POST", path, {"metadata": {"name": "later"}}).ok
    pods.wait_phase("waits", "Succeeded")


def test_readiness_probe(pods: Pods) -> None:
    probe = {"periodSeconds": 1, "exec": {"command": ["test", "-e", "ready"]}}
    pods.run("probed", ["sh", "-c", "sleep 1.5; touch ready; exec sleep 1000"], readinessProbe=probe)
    running = pods.wait_phase("probed", "Running")
    assert not running["status"]["containerStatuses"][0]["ready"]
    ready = pods.wait("probed", "is ready", is_ready)
    assert {c["type"]: c["status"] for c in ready["status"]["conditions"]}["Ready"] == "True"
    pods.delete("probed", gracePeriodSeconds=0)


# Order and restarts


def test_init_containers_run_in_order_before_the_others(pods: Pods) -> None:
    init = [
        {"name": name, "image": "any", "command": ["sh", "-c", "date +%s.%N; sleep 0.2; date +%s.%N"]}
        for name in ("one", "two")
    ]
    pods.run("ordered", ["date", "+%s.%N"], initContainers=init)
    pods.wait_phase("ordered", "Succeeded")
    times = [float(t) for c in ("one", "two", "main") for t in pods.log("ordered", c).split()]
    assert times == sorted(times)
    assert len(times) == 5


def test_init_container_that_fails_fails_the_pod(pods: Pods) -> None:
    init = [{"name": "broken", "image": "any", "command": ["false"]}]
    pods.run("stopped", ["true"], initContainers=init)
    status = pods.wait_phase("stopped", "Failed")["status"]
    assert main_state(status, "waiting") == {"reason": "PodInitializing"}


def test_sidecar_starts_before_and_ends_after_the_others(pods: Pods) -> None:
    term = "import signal, time\nsignal.signal(15, lambda *_: exit(0))\nprint('up')\ntime.sleep(1000)"
    sidecar = {"name": "side", "image": "any", "restartPolicy": "Always", "command": python(term)}
    pods.run("pair", ["sleep", "0.5"], initContainers=[sidecar], terminationGracePeriodSeconds=5)
    status = pods.wait_phase("pair", "Succeeded")["status"]
    assert "terminated" in status["initContainerStatuses"][0]["state"]
    assert pods.log("pair", "side") == "up\n"


def test_restart_with_growing_back_off(pods: Pods) -> None:
    pods.run("crashes", ["sh", "-c", "date +%s.%N; exit 1"], restartPolicy="OnFailure")
    pod = pods.wait("crashes", "3 restarts", lambda s: restarts(s) >= 3)
    assert pods.wait_waiting("crashes", "CrashLoopBackOff").startswith("back-off")
    folder = pods.agent.client.logs_path(pods.namespace, "crashes").parent
    times = [float((folder / f"{run}.log").read_text()) for run in range(4)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[1] >= 0.3, "0.3 s, after one at once"
    assert gaps[2] >= 0.6, "then twice as long"
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert pod["status"]["phase"] == "Running"


def test_other_processes_of_a_container_end_with_its_main_process(pods: Pods) -> None:
    """Also one that left the process group and was orphaned."""
    pods.run("family", ["sh", "-c", "setsid sleep 1000 & (sleep 1000 &) ; echo up; exec sleep 1000"])
    pods.wait_log("family", "up")
    client = pods.agent.client
    family = wait_for(
        lambda: pids if len(pids := client.pids(pods.namespace, "family")) == 3 else None, SECONDS, "3 pids"
    )
    os.kill(family[0], signal.SIGKILL)
    pods.wait_phase("family", "Failed")
    wait_for(lambda: not any(map(psutil.pid_exists, family)), SECONDS, "all of the family has ended")


# Deletion


def _collect_log(pods: Pods, name: str) -> Path:
    """The log's path, known before the pod is gone."""
    return pods.agent.client.logs_path(pods.namespace, name)


def test_deletion_runs_pre_stop_then_sends_term_then_waits(pods: Pods) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "touch hooked; sleep 0.3"]}}}
    pods.run("polite", python(SLOW_TERM.format(seconds=0.3)), lifecycle=hook)
    pods.wait_log("polite", "up")
    log, work = _collect_log(pods, "polite"), pods.agent.state_dir / "pods"
    pod = pods.get("polite")
    assert pod is not None
    began = time.monotonic()
    pods.delete("polite", gracePeriodSeconds=60)
    hooked = work / pod["metadata"]["uid"] / "work" / "main" / "hooked"
    wait_for(hooked.exists, SECONDS, "the hook runs")
    assert "term" not in log.read_text(), "the signal comes after the hook"
    pods.wait_gone("polite")
    assert 0.6 <= time.monotonic() - began < 60
    assert log.read_text() == "up\nterm\nend\n"
    assert not hooked.exists()


def test_kill_after_the_grace_period(pods: Pods) -> None:
    pods.run("stubborn", python(SLOW_TERM.format(seconds=1000)))
    pods.wait_log("stubborn", "up")
    log = _collect_log(pods, "stubborn")
    began = time.monotonic()
    pods.delete("stubborn", gracePeriodSeconds=3)
    pods.wait_gone("stubborn")
    assert time.monotonic() - began >= 2.5
    assert log.read_text() == "up\nterm\n"


def test_forced_deletion_ends_the_processes(pods: Pods) -> None:
    pods.run("forced", python(SLOW_TERM.format(seconds=1000)))
    pods.wait_log("forced", "up")
    pids = pods.agent.client.pids(pods.namespace, "forced")
    pods.delete("forced", gracePeriodSeconds=0)
    pods.wait_gone("forced")
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), SECONDS, "the processes have ended")
