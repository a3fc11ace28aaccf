"""A server with one job, and the command line in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from devcluster.proxy import TcpProxy
from elasticjob_client.cli.main import program
from tests.unit.client.clients import BOTH, Ask, Begun
from tests.unit.client.made import after_a_loss, ago
from tests.unit.client.server import EVENTS, NAMESPACE, PODS, Server, kubeconfig, serving


def body() -> dict[str, Any]:
    """The job that has lost a pod, as the API server has it."""
    found: dict[str, Any] = msgspec.to_builtins(after_a_loss())
    return found


def core_pod(name: str, node: str, **status: Any) -> dict[str, Any]:
    slot = name.split("-")[1]
    labels = {"elasticjob.dev/job-name": "mnist", "elasticjob.dev/slot": slot}
    times = {"creationTimestamp": ago(1000 - int(name[-1]))}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, **times},
        "spec": {"nodeName": node, "containers": [{"name": "train"}]},
        "status": {"phase": "Running", **status},
    }


def container(state: dict[str, Any]) -> dict[str, Any]:
    """A status of the training container."""
    return {"name": "train", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}


RUNNING = container({"running": {"startedAt": ago(900)}})


def core_event(
    reason: str, message: str, seconds: float, kind: str = "ElasticJob", name: str = "mnist"
) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{name}.{reason}"},
        "involvedObject": {"kind": kind, "name": name},
        "type": "Warning" if reason == "RoundBroken" else "Normal",
        "reason": reason,
        "message": message,
        "lastTimestamp": ago(seconds),
        "count": 1,
    }


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """It has one job with two members and the pod that was lost."""
    with serving(tmp_path) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig))
        found.answers[NAMESPACE] = {"kind": "Namespace", "metadata": {"name": "research"}}
        found.put(body())
        ended = {"terminated": {"exitCode": 137, "startedAt": ago(900), "finishedAt": ago(120)}}
        pods = [
            core_pod("mnist-0-0", "a"),
            core_pod("mnist-1-0", "b", phase="Failed", containerStatuses=[container(ended)]),
            core_pod("mnist-1-1", "c"),
        ]
        found.answers[PODS] = {"kind": "PodList", "metadata": {}, "items": pods}
        said = [
            core_event("RoundPublished", "round 2 begins", 118),
            core_event("RoundBroken", "round 1 ended", 120),
            core_event("Scheduled", "assigned to a", 900, "Pod", "mnist-0-0"),
            core_event("Other", "of another job", 1, name="cifar"),
        ]
        found.answers[EVENTS] = {"kind": "EventList", "metadata": {}, "items": said}
        found.answers[f"{PODS}/mnist-1-0/log"] = "Traceback\nboom\n"
        yield found


@pytest.fixture
def gate(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    """In front of a server whose watches and logs do not end by themselves; no pause is long."""
    for module in ("patience", "watching", "following"):
        monkeypatch.setattr(f"elasticjob_client.{module}.LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("elasticjob_client.on_threads.POLL_SECONDS", 0.05)
    for module in ("on_threads", "on_asyncio"):
        monkeypatch.setattr(f"elasticjob_client.{module}.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("elasticjob_client.following._STATUS_SECONDS", 0.05)
    found = body()
    found["metadata"]["resourceVersion"] = "1"
    server.put(found)
    server.held = ("watch=true", "follow=true")
    server.watches = ["", ""]
    server.answers[PODS]["items"] = server.answers[PODS]["items"][:1]
    server.answers[PODS]["items"][0]["status"]["containerStatuses"] = [RUNNING]
    with TcpProxy(("127.0.0.1", server.http.server_port)) as between:
        server.kubeconfig.write_text(yaml.safe_dump(kubeconfig(f"http://127.0.0.1:{between.port}")))
        yield between


@pytest.fixture(params=BOTH)
def begun(request: pytest.FixtureRequest) -> Callable[[Ask], Begun]:
    """Calls a method of either client in a thread of its own."""
    return lambda ask: Begun(request.param, ask)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The program in this process, whose terminal is a pipe."""
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*words: str, answer: str = "") -> Result:
        return CliRunner().invoke(program, list(words), input=answer)

    return call
