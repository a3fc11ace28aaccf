"""The command line beside a job that trains, and a script that it runs: real control plane, real torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator.act.injection import IMAGE_DIR
from elasticjob_operator.settings import HANDLER_IMAGE
from tests.dockerfile import Build
from tests.e2e.job import DEADLINE, TORCHRUN, JobRun

pytestmark = [pytest.mark.cluster, pytest.mark.devcluster]

PROGRAM = Path(sys.executable).with_name("elasticjob")
SCRIPT = """\
import os, sys
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print("ranks:", dist.get_world_size(), "arguments:", sys.argv[1:], flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if code := os.environ.get("CODE"):
        os._exit(int(code))

main()
"""


def call(job: JobRun, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The program as people call it; its flags come after the command."""
    flags = [f"--kubeconfig={job.cluster.kubeconfig}", f"--namespace={job.namespace}"]
    found = subprocess.run(
        [PROGRAM, words[0], *flags, *words[1:]],
        capture_output=True,
        text=True,
        timeout=DEADLINE * 2,
        check=False,
    )
    assert found.returncode == code, f"{words}: {found.returncode}\n{found.stdout}\n{found.stderr}"
    return found


def said(job: JobRun, *words: str) -> Any:
    """What it prints as JSON."""
    return json.loads(call(job, *words, "-o", "json").stdout)


def test_the_command_line_beside_a_job_that_loses_a_pod(job: JobRun) -> None:
    job.apply(minReplicas=1)
    job.training(1, members=2)
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
    assert "It is charged to the account infrastructure: 1 used, no limit." in told
    reasons = [event["reason"] for event in said(job, "events", job.name)["items"]]
    assert reasons.index("RoundBroken") > reasons.index("RoundEstablished")
    assert "kubelet" not in call(job, "logs", job.name, "--all").stderr
    cost = said(job, "drill", job.name, "--kill", "rank:0", "--yes")
    print("\n".join(cost["sentences"]))
    assert (len(cost["killed"]), cost["ended"]["end"]["cause"]) == (1, "PodDeleted")
    assert cost["following"]["rendezvousMilliseconds"] > 0
    assert "suspended" in call(job, "suspend", job.name).stdout
    job.wait_for(lambda: job.condition("Suspended").get("status") == "True", "it is suspended")
    assert "elasticjob resume" in " ".join(said(job, "status", job.name)["next"])
    call(job, "resume", job.name)
    call(job, "scale", job.name, "1")
    job.wait_for(lambda: job.round().get("members") == 1 and "end" not in job.round(), "one member trains")
    job.stop()
    job.complete()
    refused = call(job, "scale", job.name, "2", code=1).stderr
    assert "it is Complete, which is final" in refused
    assert f"{job.name}: deleted" in call(job, "delete", job.name).stdout
    gone = call(job, "status", job.name, code=1).stderr
    assert "not found" in gone
    assert "elasticjob list" in gone


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
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    asked = [
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
