"""The command line beside a job that trains, and a script that it runs: real control plane, real torchrun."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticjob_client import AsyncJobs, ElasticJob, Jobs
from elasticjob_client.packing import prepared
from elasticjob_operator.act.injection import IMAGE_DIR
from elasticjob_operator.settings import HANDLER_IMAGE
from tests.cluster_job import ClusterJob
from tests.dockerfile import Build
from tests.e2e.job import DEADLINE, SCRIPTS, TORCHRUN, JobRun
from tests.terminal import INTERRUPT, terminal

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

PROGRAM = Path(sys.executable).with_name("elasticjob")
SCRIPT = """\
import os, sys
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from greeting import WORD

@record
def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print(WORD, dist.get_world_size(), "arguments:", sys.argv[1:], flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if code := os.environ.get("CODE"):
        os._exit(int(code))

main()
"""


def line(job: ClusterJob, *words: str) -> list[str]:
    """The program with its flags, as people call it."""
    flags = [f"--kubeconfig={job.cluster.kubeconfig}", f"--namespace={job.namespace}"]
    return [str(PROGRAM), *flags, *words]


def call(job: ClusterJob, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The program, which must end with this code."""
    found = subprocess.run(
        line(job, *words),
        capture_output=True,
        text=True,
        timeout=DEADLINE * 2,
        check=False,
    )
    assert found.returncode == code, f"{words}: {found.returncode}\n{found.stdout}\n{found.stderr}"
    return found


def said(job: ClusterJob, *words: str, code: int = 0) -> Any:
    """What it prints as JSON."""
    return json.loads(call(job, *words, "-o", "json", code=code).stdout)


def results(job: ClusterJob, *words: str, code: int = 0) -> dict[str, str]:
    """What doctor finds, by subject; what is not ok has advice."""
    checks = said(job, "doctor", *words, code=code)["items"]
    assert [check for check in checks if check["result"] != "ok" and "advice" not in check] == []
    return {check["subject"]: check["result"] for check in checks}


class Followed:
    """What goes on while a job runs: `logs -f`, and the job's changes as a program watches them."""

    def __init__(self, job: JobRun, folder: Path) -> None:
        self._log = folder / "followed.jsonl"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(line(job, "logs", job.name, "-f", "-o", "json"), stdout=output)
        self._states: list[tuple[int, str]] = []
        self._watcher = threading.Thread(target=self._watch, args=(job,), daemon=True)
        self._watcher.start()

    def _watch(self, job: JobRun) -> None:
        with Jobs(job.namespace, kubeconfig=str(job.cluster.kubeconfig)) as jobs:
            for seen in jobs.watch(job.name):
                assert seen.status
                self._states.append((seen.status.current_round.number, seen.state))

    def lines(self) -> list[dict[str, Any]]:
        """Once the job has ended, and the command with it."""
        assert self._process.wait(DEADLINE) == 0
        return [json.loads(text) for text in self._log.read_text().splitlines()]

    def states(self) -> list[tuple[int, str]]:
        """Once it has ended: round and state after each change."""
        self._watcher.join(DEADLINE)
        assert not self._watcher.is_alive()
        return self._states

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def followed(job: JobRun, tmp_path: Path) -> Iterator[Followed]:
    """Of a job that trains by now."""
    job.apply([*TORCHRUN, str(SCRIPTS / "reports.py"), str(job.folder)])
    job.training(1, members=2)
    found = Followed(job, tmp_path)
    yield found
    found.close()


@pytest.mark.timeout(600)  # seven rounds
def test_the_command_line_beside_a_job_that_loses_a_pod(
    job: JobRun, followed: Followed, tmp_path: Path
) -> None:
    (row,) = said(job, "list")["items"]
    assert (row["name"], row["state"], row["members"], row["round"]) == (job.name, "Training", 2, 1)
    lost = job.member(1)["podName"]
    job.kill_pod(lost)
    job.training(2, members=2)
    found = said(job, "status", job.name)
    assert {found["currentRound"]["number"], 1} <= {one["number"] for one in found["rounds"]}
    assert {pod["pod"] for pod in found["pods"] if "rank" in pod} <= set(job.pods())
    print(call(job, "status", job.name).stdout)
    told = call(job, "why", job.name, "--round", "1").stdout
    print(told)
    assert f"{lost} (group rank 1) was lost: its container ended with SIGKILL" in told
    assert f"First to fail: {lost} (group rank 1)" in told
    assert "It is counted under infrastructure: 1 restart, no limit." in told
    reasons = [event["reason"] for event in said(job, "events", job.name)["items"]]
    assert reasons.index("RoundBroken") > reasons.index("RoundEstablished")
    assert f"The end of {lost}'s log:" in told
    assert re.search(r"^  rank 1 step \d+0$", told, re.MULTILINE)
    has_logs_by_rank_and_round(job, lost)
    page = tmp_path / "report.html"
    assert call(job, "report", job.name, "-o", str(page)).stdout == f"wrote {page}\n"
    for text in ("round 1: formed for Started, 2 members", "round 2: formed for PodLost, 2 members", lost):
        assert text in page.read_text()
    assert results(job, job.name)["command"] == "ok", "it has joined"
    found = results(job, code=1)
    assert [subject for subject, result in found.items() if result == "failed"] == ["operator"]  # no pods
    cost = said(job, "drill", job.name, "--kill", "rank:0", "--yes")
    print("\n".join(cost["sentences"]))
    assert (len(cost["killed"]), cost["ended"]["end"]["cause"]) == (1, "PodDeleted")
    assert cost["following"]["rendezvousMilliseconds"] > 0
    assert cost.get("stepsRedone", 0) <= 2, "rank 0 notes each step"
    job.training(cost["following"]["number"], members=2)
    node = job.member(0)["nodeName"]
    there = {pod for pod, found in job.pods().items() if found["spec"]["nodeName"] == node}
    cost = said(job, "drill", job.name, "--kill", f"node:{node}", "--yes")
    print("\n".join(cost["sentences"]))
    assert set(cost["killed"]) & there
    assert set(cost["killed"]) <= there
    assert cost["ended"]["end"]["cause"] == "PodDeleted"
    assert "suspended" in call(job, "suspend", job.name).stdout
    job.wait_for(lambda: job.condition("Suspended").get("status") == "True", "it is suspended")
    assert "elasticjob resume" in " ".join(said(job, "status", job.name)["next"])
    suspended = job.round()["number"]
    call(job, "resume", job.name)
    job.training(suspended + 1, members=2)
    call(job, "scale", job.name, "1")
    job.training(suspended + 2, members=1)
    job.stop()
    job.complete()
    # Pods that get rank 0 later are read from their beginning, when they had another.
    found = [
        re.match(r"rank 0 of \d+ resumes from .* in round (\d+)$", line["text"]) for line in followed.lines()
    ]
    rounds = [int(one[1]) for one in found if one]
    assert rounds == list(range(1, job.round()["number"] + 1))
    states = followed.states()
    assert {number for number, state in states if state == "Training"} >= {1, 2}
    assert states[-1][1] == "Complete"
    refused = call(job, "scale", job.name, "2", code=1).stderr
    assert "it is Complete, which is final" in refused
    assert f"{job.name}: deleted" in call(job, "delete", job.name).stdout
    gone = call(job, "status", job.name, code=1).stderr
    assert "not found" in gone
    assert "elasticjob list" in gone


def has_logs_by_rank_and_round(job: JobRun, lost: str) -> None:
    """Rank 1 was that of the lost pod in round 1, and is that of its successor in round 2."""

    def resumed(*words: str) -> list[str]:
        lines = call(job, "logs", job.name, *words).stdout.splitlines()
        return [text.rpartition("] ")[2] for text in lines if "resumes from" in text]

    first, second = resumed("--rank", "1")
    assert first == "rank 1 of 2 resumes from step 0 in round 1"
    assert second.endswith(" in round 2")
    for window in (("--round", "1"), ("--since-failure",)):  # with timestamps: tests/nodes/test_client.py
        refused = call(job, "logs", job.name, "--rank", "1", *window, code=1)
        assert (refused.stdout, "have no timestamps" in refused.stderr) == ("", True)
    everyone = call(job, "logs", job.name, "--all")
    assert "kubelet" not in everyone.stderr
    pods = [job.member(rank)["podName"] for rank in (0, 1)]
    for who in (f"[- {lost}]", f"[0 {pods[0]}]", f"[1 {pods[1]}]"):
        assert f"{who} rank " in everyone.stdout, who
    assert len(resumed("--all")) == 4


ASKED = """\
import os, sys, time
import torch.distributed as dist
import elasticjob

def waits_for_rank_1(folder):
    while not os.path.exists(folder + "/stop"):
        elasticjob.report_progress(1)
        time.sleep(0.1)

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    waits_for_rank_1(sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""
ENTER = """\
#!{python}
# kubectl exec POD -c CONTAINER -- COMMAND: devcluster's nodes have no exec, so it enters the container.
import os, sys
words = sys.argv[1:]
pod, command = words[words.index("exec") + 1], words[words.index("--") + 1:]
pid = {pids!r}[pod]
os.environ["PYTHONPATH"] = {path!r}
os.execvp("nsenter", ["nsenter", "-t", str(pid), "-p", "-m", "--", *command])
"""


@pytest.mark.root
def test_stacks_of_all_workers_are_shown_and_training_goes_on(
    job: JobRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ASKED)
    job.apply(command=[*TORCHRUN, str(script), str(job.folder)])
    job.wait_for(lambda: job.get()["status"].get("progress", {}).get("step") == 1, "rank 1 has made a step")
    pods = [job.member(rank)["podName"] for rank in (0, 1)]
    pids = {pod: job.worker_pids(pod)[0] for pod in pods}
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    path = os.pathsep.join(entry for entry in sys.path if entry)
    kubectl.write_text(ENTER.format(python=sys.executable, pids=pids, path=path))
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{kubectl.parent}:{PROGRAM.parent}:{os.environ['PATH']}")
    for _ in range(2):
        first, second = said(job, "stacks", job.name)["stacks"]
        assert (first["rank"], first["pod"], second["rank"], second["pod"]) == (0, pods[0], 1, pods[1])
        assert "in barrier" in first["stack"], "rank 0 waits in a collective"
        assert "in waits_for_rank_1" in second["stack"]
    print(call(job, "stacks", job.name).stdout)
    job.stop()
    job.complete()
    assert [entry["number"] for entry in job.rounds()] == [1], "no round has ended by it"


@pytest.mark.root
def test_a_script_is_run_to_its_end_and_the_command_has_its_exit_code(
    job: JobRun, handler_image: Build, tmp_path: Path
) -> None:
    job.cluster.add_image(HANDLER_IMAGE, "/usr/bin", {IMAGE_DIR: handler_image.home / "site"})
    script = tmp_path / "code" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (script.parent / "greeting.py").write_text("WORD = 'ranks:'\n")
    asked = [
        "--code",
        str(script.parent),
        "--image",
        "elasticjob-test",
        "--replicas",
        "2",
        "--max-restarts",
        "0",
        "--env",
        "OMP_NUM_THREADS=1",
    ]
    ended = call(job, "run", str(script), *asked, "--name", "good", "--", "--lr", "0.1")
    assert "ranks: 2 arguments: ['--lr', '0.1']" in ended.stdout
    assert "created elasticjob/good" in ended.stderr
    assert "good: Complete: " in ended.stderr
    ended = call(job, "run", str(script), *asked, "--name", "bad", "--env", "CODE=7", code=7)
    assert "`elasticjob why bad` tells more" in ended.stderr
    print(ended.stdout, ended.stderr)
    owned = job.cluster.read(f"/api/v1/namespaces/{job.namespace}/configmaps/good-code")
    assert [owner["kind"] for owner in owned["metadata"]["ownerReferences"]] == ["ElasticJob"]
    served = call(
        job, "run", str(script), *asked, "--name", "third", "--dry-run", "server", "-o", "yaml"
    ).stdout
    assert "cleanPodPolicy: Running" in served
    assert "uid" not in served
    with terminal(line(job, "run", str(script), *asked, "--name", "left")) as shown:
        shown.wait(lambda text: "created elasticjob/left" in text)
        shown.press(INTERRUPT)
        shown.wait(lambda text: "delete left? Otherwise it goes on without you" in text)
        shown.press("y\r")
        assert shown.end() == 130, shown.text
        assert "left: deleted" in shown.text
    left = JobRun(job.cluster, job.namespace, tmp_path, "left")
    job.wait_for(lambda: not ClusterJob.get(left), "it is deleted")


def greet(word: str) -> None:
    """What a notebook has in a cell."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    print(word, dist.get_rank(), "of", dist.get_world_size(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.root
def test_functions_are_trained_and_followed_by_programs(job: JobRun, handler_image: Build) -> None:
    job.cluster.add_image(HANDLER_IMAGE, "/usr/bin", {IMAGE_DIR: handler_image.home / "site"})
    image = "elasticjob-test"
    asked: dict[str, Any] = {"replicas": 2, "environment": {"OMP_NUM_THREADS": "1"}}
    kubeconfig = str(job.cluster.kubeconfig)
    body, code = prepared(greet, image, "second", {"word": "bonjour"}, None, asked)
    with Jobs(job.namespace, kubeconfig=kubeconfig) as jobs:
        made = jobs.run(greet, image=image, name="first", arguments={"word": "hello"}, **asked)
        assert made.name == "first"
        job.create(code)
        states, lines = asyncio.run(submitted(job.namespace, kubeconfig, body))
        assert states[-1] == "Complete"
        assert "bonjour 0 of 2" in lines
        *_, ended = jobs.watch("first")
        assert ended.state == "Complete"
        assert "hello 1 of 2" in [found.text for found in jobs.logs("first", rank=1)]


async def submitted(namespace: str, kubeconfig: str, job: ElasticJob) -> tuple[list[str], list[str]]:
    """Submit a job and follow it to its end: its states, and the lines of rank 0 as they came."""
    async with AsyncJobs(namespace, kubeconfig=kubeconfig) as jobs:
        made = await jobs.submit(job)

        async def states() -> list[str]:
            return [seen.state async for seen in jobs.watch(made.name)]

        async def lines() -> list[str]:
            await jobs.wait(made.name, "Training", timeout_seconds=DEADLINE)
            return [found.text async for found in jobs.logs(made.name, 0, follow=True)]

        seen, printed = await asyncio.gather(states(), lines())
        return seen, printed
