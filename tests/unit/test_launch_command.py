"""Whether a command's pods take part in rounds: one judge for operator and doctor, and what torch does."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest

from elasticjob.contract import launch_command
from elasticjob.contract.launch_command import environment, judge
from elasticjob.contract.names import BACKEND
from elasticjob_client.explain.template import judged
from elasticjob_operator.act.injection import HandlerImage
from elasticjob_operator.act.template import pod_of
from elasticjob_operator.plan.state.model import Job, JobSpec
from elasticjob_operator.plan.template.torchrun_flags import why_apart

OURS = environment("team/job", "uid", 4)

# A command, what becomes of its pods, and what in it overrides the operator's settings.
COMMANDS: list[tuple[str, str, str]] = [
    ("torchrun train.py", "joins", ""),
    ("torchrun train.py --standalone", "joins", ""),
    ("torchrun train.py --nnodes 4", "joins", ""),
    ("torchrun -m package.train --standalone", "joins", ""),
    ("torchrun --no-python ./start --standalone", "joins", ""),
    ("/opt/conda/bin/torchrun --rdzv-conf=warm=on --nproc-per-node 8 train.py --nnodes 4", "joins", ""),
    ("torchrun --rdzv_backend k8s --nnodes 1:4 train.py sh -c --standalone", "joins", ""),
    ("torchrun --rdzv-id=$PET_RDZV_ID --rdzv-endpoint $(PET_RDZV_ENDPOINT) train.py", "joins", ""),
    ("torchrun --rdzv-backend k8s --rdzv-endpoint job train.py", "joins", ""),
    ("torchrun --rdzv_backend k8s --rdzv_endpoint other t.py", "overridden", "--rdzv_endpoint"),
    ("torchrun --rdzv-backend=k8s --rdzv-id=foo train.py", "overridden", "--rdzv-id=foo"),
    ("torchrun --rdzv-backend=k8s --rdzv-endpoint=foo t.py", "overridden", "--rdzv-endpoint=foo"),
    ("torchrun --node-rank 0 --master-addr a --master-port 1 train.py", "joins", ""),
    ("torchrun --node-rank=0 train.py", "joins", ""),
    ("torchrun --master-addr=a train.py", "joins", ""),
    ("torchrun --max-restarts=3 train.py", "joins", "--max-restarts=3"),
    ("torchrun --standalone train.py", "alone", "--standalone"),
    ("torchrun --stand train.py", "alone", "--stand"),
    ("torchrun --tee 3 --standalone train.py", "alone", "--standalone"),
    ("torchrun --nnodes=2 train.py", "overridden", "--nnodes=2"),
    ("torchrun --rdzv_backend c10d train.py", "overridden", "--rdzv_backend"),
    ("torchrun --rdzv-back c10d --rdzv_id a train.py", "overridden", "--rdzv-back --rdzv_id"),
    ("python -m torch.distributed.run train.py", "joins", ""),
    ("python3.11 -u -m elasticjob.run train.py", "joins", ""),
    ("python -m torch.distributed.launch --use-env --rdzv-id=a t.py", "overridden", "--rdzv-id=a"),
    ("python -m torch.distributed.run --rdzv-endpoint=a:1 t.py", "overridden", "--rdzv-endpoint=a:1"),
    ("python -I -m torch.distributed.run train.py", "isolated", ""),
    ("python -E /usr/bin/torchrun train.py", "isolated", ""),
    ("python train.py", "python", ""),
    ("/bin/python3.11 -u train.py", "python", ""),
    ("python -m package.train", "unknown", ""),
    ("python -c 'import train'", "unknown", ""),
    ("deepspeed train.py", "ranks", ""),
    ("./run.sh", "unknown", ""),
    ("bash start.sh", "unknown", ""),
    ("sh -c 'python train.py'", "unknown", ""),
    ("accelerate launch train.py", "unknown", ""),
    ("accelerate launch --rdzv_backend k8s --max_restarts 1000000 train.py", "joins", ""),
    ("accelerate launch --rdzv_backend c10d train.py", "overridden", "--rdzv_backend"),
    ("env PET_STANDALONE=1 torchrun train.py", "alone", "PET_STANDALONE=1"),
    ("env PET_STANDALONE=0 torchrun train.py", "joins", ""),
    ("numactl --cpunodebind 0 torchrun --nnodes 1 train.py", "overridden", "--nnodes"),
    ("sh -c 'prepare && exec torchrun train.py'", "joins", ""),
    ("sh -c 'export PET_STANDALONE=1; torchrun train.py'", "alone", "PET_STANDALONE=1"),
    ("sh -c 'export PET_STANDALONE=1 A=2\ntorchrun train.py'", "alone", "PET_STANDALONE=1"),
    ("sh -c 'PET_NNODES=2 torchrun train.py'", "overridden", "PET_NNODES=2"),
    ("sh -c 'PET_NNODES=2; torchrun --nnodes=1:4 train.py'", "joins", ""),
    ("sh -c 'PET_NNODES=2 prepare; torchrun train.py'", "joins", ""),
    ("sh -c 'unset PET_RDZV_BACKEND; torchrun train.py'", "overridden", "unset PET_RDZV_BACKEND"),
    ("sh -c 'export PET_RDZV_CONF=warm=on; torchrun train.py'", "joins", ""),
    ("bash -euo pipefail -c 'torchrun --tee $(id) --standalone t.py 2>&1'", "alone", "--standalone"),
    ("sh -c 'torchrun --standalone check.py && torchrun train.py'", "joins", ""),
    ("sh -c 'torchrun --standalone a || torchrun --standalone b'", "alone", "--standalone"),
    ("sh -c 'if test -f x; then torchrun --standalone train.py; fi'", "alone", "--standalone"),
    ("sh -c 'export PET_STANDALONE=1; exec \"$@\"' sh torchrun train.py", "alone", "PET_STANDALONE=1"),
    ("tini -- bash -c 'torchrun --standalone train.py'", "alone", "--standalone"),
    ("bash -c 'torchrun --rdzv-id=foo train.py'", "overridden", "--rdzv-id=foo"),
    ("bash -c 'torchrun --rdzv-backend=c10d t.py'", "overridden", "--rdzv-backend=c10d"),
    ("bash -c 'torchrun --standalone train.py'", "alone", "--standalone"),
    ("sh -c 'prepare;torchrun train.py'", "joins", ""),
    ("sh -c 'PYTHONPATH=/app torchrun train.py'", "path", ""),
    ("sh -c 'export PYTHONPATH=/app; torchrun train.py'", "path", ""),
    ("sh -c 'PYTHONPATH=/app:$PYTHONPATH torchrun train.py'", "joins", ""),
    ("env PYTHONPATH=/app torchrun train.py", "path", ""),
    ("sh -c 'torchrun --standalone \"train.py'", "alone", "--standalone"),
]  # fmt: skip


DOCTOR_SAYS = {
    "python": "each pod would train alone",
    "isolated": "does not find the backend",
    "path": "replaces PYTHONPATH",
    "ranks": "fixed number of ranks",
    "unknown": "not known to start torchrun",
}


@pytest.mark.parametrize(("command", "kind", "overriding"), COMMANDS, ids=[one for one, _, _ in COMMANDS])
def test_commands(command: str, kind: str, overriding: str) -> None:
    words = shlex.split(command)
    found = judge(words[:1], words[1:], OURS)
    written = " ".join(one.written for one in found.overriding)
    assert (found.kind, written) == (kind, overriding)
    assert judge(words, [], OURS) == found


@pytest.mark.parametrize(("command", "kind", "overriding"), COMMANDS, ids=[one for one, _, _ in COMMANDS])
def test_doctor_and_the_operator_say_the_same(command: str, kind: str, overriding: str) -> None:
    """Where one says that the pods take no part, so does the other."""
    words = shlex.split(command)
    template = {"spec": {"containers": [{"name": "train", "command": words}]}}
    why = why_apart(Job("team", "job", "uid", 1, JobSpec(template=template, replicas=4)))
    result, said, advice = judged(judge(words, [], OURS))
    assert bool(why) == (kind in ("alone", "overridden", "python", "ranks")), why
    wanted = "unknown" if kind == "unknown" else "ok" if (kind, overriding) == ("joins", "") else "failed"
    assert (result, bool(advice)) == (wanted, wanted != "ok")
    overrides = f"{overriding.replace(' -', ', -')} override" if overriding else ""
    assert DOCTOR_SAYS.get(kind, overrides) in said


def test_the_images_own_command_is_not_known() -> None:
    assert judge([], [], OURS).kind == "image"
    assert judge([], ["python", "train.py"], OURS).kind == "image"
    assert judge([], ["--standalone", "train.py"], OURS).kind == "alone"


def test_where_the_image_has_the_handler_the_path_does_not_matter() -> None:
    for command in (["env", "PYTHONPATH=/app", "torchrun", "t.py"], ["python", "-I", "-m", "elasticjob.run"]):
        assert judge(command, [], OURS, injected=False).kind == "joins"


def test_the_backend_is_ours() -> None:
    assert OURS["PET_RDZV_BACKEND"] == BACKEND


def parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    made: argparse.ArgumentParser = get_args_parser()
    return made


def test_all_options_of_torchrun_are_known() -> None:
    """An unknown option with a value would be taken for the script."""
    flags: set[str] = set()
    with_value: set[str] = set()
    for action in parser()._actions:
        names = {name[2:].replace("_", "-") for name in action.option_strings if name.startswith("--")}
        (flags if action.nargs == 0 else with_value).update(names)
    assert flags <= launch_command._FLAGS
    assert with_value <= launch_command._WITH_VALUE


@pytest.mark.parametrize("where", ["image", "env"])
def test_a_setting_of_the_environment_is_replaced_wherever_it_comes_from(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun itself reads what the operator sets: by the image's environment or envFrom, which the
    container's env overrides, or by the env of the template."""
    users = {"PET_STANDALONE": "1", "PET_NNODES": "1", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "x:1"}
    container: dict[str, Any] = {"name": "train", "command": ["torchrun", "train.py"]}
    if where == "env":
        container["env"] = [{"name": name, "value": value} for name, value in users.items()]
    job = Job("team", "job", "uid", 1, JobSpec(template={"spec": {"containers": [container]}}))
    (made,) = pod_of(job, 0, 0, HandlerImage("handler:1"))["spec"]["containers"]
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    for entry in made["env"]:
        if "value" in entry:
            monkeypatch.setenv(entry["name"], entry["value"])
    args = parser().parse_args(["train.py"])
    assert not args.standalone
    assert (args.rdzv_backend, args.rdzv_endpoint, args.nnodes) == (BACKEND, "team/job", "1:1")


MOST = 128 * 1024
"""Bytes of a template that the operator reads."""
TORCHRUNS = "torchrun;" * 7_000


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["sh", "-" + "c" * MOST + "!"], id="an option of the shell"),
        pytest.param(
            ["sh", "-c", "".join(f"export PET_{i}=;" for i in range(4000)) + TORCHRUNS], id="exports"
        ),
        pytest.param(["sh", "-c", "export PET_ROLE=a PET_TEE=3;" + TORCHRUNS], id="torchruns"),
        pytest.param(["sh", "-c", "1" * MOST + " torchrun x"], id="digits"),
        pytest.param(["sh", "-c", "$(" * (MOST // 2)], id="substitutions"),
        pytest.param(["sh", "-c", "'" + "a" * MOST], id="a quote without an end"),
        pytest.param(["env", *["A=1"] * (MOST // 5), "torchrun"], id="words"),
    ],
)
@pytest.mark.timeout(60)
def test_no_command_keeps_the_operator_busy(command: list[str]) -> None:
    """Each takes a tenth of a second: it was minutes, or 400 MB, for the first three."""
    judged = judge(command, [], OURS)
    assert judged.kind in ("unknown", "joins")
    assert len(judged.settings) < 100_000


def test_a_torchrun_after_what_is_looked_at_may_take_part() -> None:
    script = "torchrun --standalone a.py\n" + "# a comment\n" * 2_000 + "torchrun train.py"
    assert judge(["sh", "-c", script], [], OURS).kind == "unknown"
    assert judge(["torchrun", "train.py", *["--x"] * 2_000], [], OURS).kind == "joins"
