"""What befalls nodes and the agent itself: evictions, shutdowns, power cuts, partitions, outages."""

from __future__ import annotations

import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agent_pods import BEAT, SECONDS, SLOW_TERM, Agent, Object, Pods, main_state, python, restarts
from devcluster.cluster import Cluster
from devcluster.nodeagent.client import NodeAgentError
from devcluster.wait import wait_for

pytestmark = pytest.mark.devcluster


# What kubelet decides by itself


def _disruption(pod: Object) -> list[tuple[str, str]]:
    conditions = pod["status"].get("conditions", [])
    return [(c["status"], c["reason"]) for c in conditions if c["type"] == "DisruptionTarget"]


def test_eviction_under_pressure(pods: Pods) -> None:
    pods.run("greedy", python(SLOW_TERM.format(seconds=0.1)), terminationGracePeriodSeconds=60)
    pods.wait_log("greedy", "up")
    pods.agent.client.evict_pod(pods.namespace, "greedy")
    pod = pods.wait_phase("greedy", "Failed")
    assert (pod["status"]["reason"], _disruption(pod)) == ("Evicted", [("True", "TerminationByKubelet")])
    assert main_state(pod["status"], "terminated")["exitCode"] == 0, "Failed, however well it ended"
    assert "deletionTimestamp" not in pod["metadata"]
    assert pods.log("greedy") == "up\nterm\nend\n"
    pods.agent.client.evict_pod(pods.namespace, "greedy")
    pods.delete("greedy")
    pods.wait_gone("greedy")


def _wait_processes(pods: Pods, name: str, count: int) -> None:
    pids = pods.agent.client.pids
    wait_for(lambda: len(pids(pods.namespace, name)) == count, SECONDS, f"{count} processes of {name} run")


def test_a_full_memory(pods: Pods) -> None:
    """The container reads the count of its control group; the mark of it stays."""
    script = "sleep 1000; cat /sys/fs/cgroup/memory.events; exec sleep 1000"
    client, namespace = pods.agent.client, pods.namespace
    pods.run("greedy", ["sh", "-c", script], resources={"limits": {"memory": "1Gi"}})
    pods.run("unlimited", ["sh", "-c", script])
    for name in ("greedy", "unlimited"):
        pods.wait_phase(name, "Running")
        _wait_processes(pods, name, 2)
    client.run_out_of_memory(namespace, "greedy", "main", client.pids(namespace, "greedy")[1])
    pods.wait_log("greedy", "oom_kill 1")
    pods.wait_phase("greedy", "Running")
    client.kill_container(namespace, "greedy")
    end = main_state(pods.wait_phase("greedy", "Failed")["status"], "terminated")
    assert (end["exitCode"], end["reason"]) == (137, "OOMKilled")
    with pytest.raises(NodeAgentError, match="with a limit of memory"):
        client.run_out_of_memory(namespace, "unlimited", "main", client.pids(namespace, "unlimited")[1])


def test_shutdown_of_a_node(pods: Pods) -> None:
    client, node = pods.agent.client, pods.agent.nodes[1]
    for name, seconds in (("polite", 0.1), ("stubborn", 1000)):
        pods.run(name, python(SLOW_TERM.format(seconds=seconds)), node=1)
        pods.wait_log(name, "up")
    pids = client.pids(pods.namespace, "stubborn")
    with ThreadPoolExecutor(1) as pool:
        shutdown = pool.submit(client.shut_down_node, node, 8.0)
        try:
            pods.agent.wait_node(node, "False")
            pods.run("late", ["sleep", "1000"], node=1, nodeName=node)
            late = pods.wait_phase("late", "Failed")["status"]
        finally:
            shutdown.result()
            client.start_node(node)
    assert late["reason"] == "NodeShutdown"
    assert "containerStatuses" not in late
    for name in ("polite", "stubborn"):
        pod = pods.wait_phase(name, "Failed")
        assert (pod["status"]["reason"], _disruption(pod)) == (
            "Terminated",
            [("True", "TerminationByKubelet")],
        )
    assert not any(map(psutil.pid_exists, pids))
    pods.agent.wait_node(node, "True")
    for name in ("polite", "stubborn", "late"):
        pods.delete(name)
        pods.wait_gone(name)


def test_a_pod_that_is_bound_to_a_node_that_it_does_not_want_is_rejected(pods: Pods) -> None:
    """As a kubelet does it; a label that comes later counts from then on."""
    first, second = pods.agent.nodes
    pods.run("misplaced", ["sleep", "1000"], nodeName=first, nodeSelector={"kubernetes.io/hostname": second})
    status = pods.wait_phase("misplaced", "Failed")["status"]
    assert status["reason"] == "NodeAffinity"
    assert status["message"].startswith(
        "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match"
    )
    assert "containerStatuses" not in status
    pods.agent.cluster.kubectl("label", "node", first, "wanted=yes")
    pods.run("wanted", ["true"], nodeName=first, nodeSelector={"wanted": "yes"})
    pods.wait_phase("wanted", "Succeeded")


# kubectl logs


def test_kubectl_logs(pods: Pods) -> None:
    pods.run("talks", ["sh", "-c", "for i in 1 2 3; do echo line $i; done; sleep 1; echo last"])
    pods.wait_log("talks", "line 3")
    kubectl = pods.agent.cluster.kubectl
    tail = kubectl("-n", pods.namespace, "logs", "talks", "--tail=1")
    assert tail.stdout in ("line 3\n", "last\n")
    followed = kubectl("-n", pods.namespace, "logs", "-f", "talks")
    assert followed.stdout == "line 1\nline 2\nline 3\nlast\n"


# Faults


def test_cut_node_reaches_no_api_and_its_processes_live(pods: Pods) -> None:
    pods.run("beats", python(BEAT))
    pods.wait_log("beats", "reached")
    client, node = pods.agent.client, pods.agent.nodes[0]
    client.cut_node(node)
    try:
        pods.wait_log("beats", "lost")
        client.kill_container(pods.namespace, "beats", signal=signal.SIGSTOP)
        client.kill_container(pods.namespace, "beats", signal=signal.SIGCONT)
        assert client.pids(pods.namespace, "beats"), "it runs on"
        client.kill_container(pods.namespace, "beats")
        wait_for(lambda: not client.pids(pods.namespace, "beats"), SECONDS, "it has ended")
        pod = pods.get("beats")
        assert pod is not None
        assert pod["status"]["phase"] == "Running", "nobody could be told"
    finally:
        client.restore_node(node)
    pods.wait_phase("beats", "Failed")


def test_deletion_during_a_cut_is_carried_out_afterwards(pods: Pods) -> None:
    pods.run("far", ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.1; done"])
    pods.wait_phase("far", "Running")
    client, node = pods.agent.client, pods.agent.nodes[0]
    client.cut_node(node)
    try:
        pods.delete("far")
        pods.run("other", ["true"], node=1)
        pods.wait_phase("other", "Succeeded")
        assert client.pids(pods.namespace, "far"), "the node has not heard of the deletion"
    finally:
        client.restore_node(node)
    pods.wait_gone("far")


def test_frozen_node_stands_still(pods: Pods) -> None:
    pods.run("ticks", python("import time\nwhile True:\n    print('tick'); time.sleep(0.02)"))
    pods.wait_log("ticks", "tick")
    client, node = pods.agent.client, pods.agent.nodes[0]
    client.freeze_node(node)
    try:
        pids = client.pids(pods.namespace, "ticks")
        assert [psutil.Process(pid).status() for pid in pids] == [psutil.STATUS_STOPPED]
        size = len(pods.log("ticks"))
        pods.run("later", ["true"])
        pods.wait(
            "later", "is bound", lambda s: any(c["type"] == "PodScheduled" for c in s.get("conditions", ()))
        )
        assert len(pods.log("ticks")) == size
    finally:
        client.thaw_node(node)
    pods.wait_phase("later", "Succeeded")
    wait_for(lambda: len(pods.log("ticks")) > size, SECONDS, "it ticks again")


def test_killed_node_becomes_not_ready_and_comes_back_empty(pods: Pods) -> None:
    pods.run("lost", ["sleep", "1000"], node=1)
    pods.run("service", ["sleep", "1000"], node=1, restartPolicy="Always")
    pods.wait_phase("lost", "Running")
    pods.wait_phase("service", "Running")
    client, node = pods.agent.client, pods.agent.nodes[1]
    pids = client.pids(pods.namespace, "lost") + client.pids(pods.namespace, "service")
    client.kill_node(node)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    pod = pods.get("lost")
    assert pod is not None
    assert pod["status"]["phase"] == "Running", "a node without power says nothing"
    with pytest.raises(NodeAgentError, match="is off"):
        client.cut_node(node)
    pods.agent.wait_node(node, "Unknown")
    client.start_node(node)
    pods.agent.wait_node(node, "True")
    ended = pods.wait_phase("lost", "Failed")
    assert main_state(ended["status"], "terminated")["reason"] == "Unknown"

    def restarted(status: Object) -> bool:
        return bool(main_state(status, "running")) and restarts(status) == 1

    pods.wait("service", "runs again", restarted)


def test_api_server_outage_hurts_no_container(pods: Pods) -> None:
    pods.run("survives", ["sh", "-c", "sleep 1; echo done; exec sleep 1000"])
    pods.run("ends", ["sleep", "1"], node=1)
    for name in ("survives", "ends"):
        pods.wait_phase(name, "Running")
    apiserver = pods.agent.cluster.component("apiserver")
    apiserver.kill()
    try:
        pods.wait_log("survives", "done")
        client = pods.agent.client
        wait_for(lambda: not client.pids(pods.namespace, "ends"), SECONDS, "it ends during the outage")
        assert client.pids(pods.namespace, "survives")
    finally:
        apiserver.start()
    pods.wait_phase("ends", "Succeeded")
    pods.delete("survives", gracePeriodSeconds=0)


def test_unknown_names_are_refused(pods: Pods) -> None:
    with pytest.raises(NodeAgentError, match="no node 'nowhere'"):
        pods.agent.client.kill_node("nowhere")
    with pytest.raises(NodeAgentError, match="no pod default/nobody"):
        pods.agent.client.pids("default", "nobody")


# The end


def _of(state_dir: Path) -> list[psutil.Process]:
    """Processes of the containers of the agent with this state folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("HOME", "").startswith(str(state_dir)):
                found.append(process)
    return found


@pytest.mark.parametrize("as_user", [False, True], ids=["plain", "user"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_nothing_is_left_when_the_agent_ends(
    devcluster: Cluster, namespace: str, tmp_path: Path, number: signal.Signals, as_user: bool
) -> None:
    agent = Agent(devcluster, tmp_path, "doomed", as_user)
    pods = Pods(agent, namespace)
    memory = {"name": "m", "emptyDir": {"medium": "Memory"}}
    pods.run("main", ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"], volumes=[memory])
    pods.wait_phase("main", "Running")
    wait_for(lambda: len(_of(agent.state_dir)) == 2, SECONDS, "both processes are up")
    children = psutil.Process(agent.process.pid).children(recursive=True)
    uid = devcluster.kubectl("-n", namespace, "get", "pod", "main", "-o", "jsonpath={.metadata.uid}").stdout
    folders = [
        f for place in ("/tmp", "/dev/shm") for f in Path(place).glob("dc-*") if any(f.glob(f"{uid[:8]}*"))
    ]
    assert {str(f.parent) for f in folders} == {"/tmp", "/dev/shm"}, (
        "what the agent has made outside its folder"
    )
    agent.process.send_signal(number)
    agent.process.wait(SECONDS)
    wait_for(lambda: not any(child.is_running() for child in children), SECONDS, "no process is left")
    wait_for(lambda: not _of(agent.state_dir), SECONDS, "no container is left")
    wait_for(lambda: not any(folder.exists() for folder in folders), SECONDS, "no folder is left")
    pods.delete("main", gracePeriodSeconds=0)
    for node in agent.nodes:
        devcluster.kubectl("delete", "node", node)


def test_agent_that_starts_again_finds_its_pods_lost(
    devcluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    first = Agent(devcluster, tmp_path, "again")
    pods = Pods(first, namespace)
    pods.run("lost", ["sleep", "1000"])
    pods.wait_phase("lost", "Running")
    first.process.kill()
    first.process.wait(SECONDS)
    second = Agent(devcluster, tmp_path, "again")
    with contextlib.closing(second):
        Pods(second, namespace).wait_phase("lost", "Failed")
