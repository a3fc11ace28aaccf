"""What the template shows: why its pods do not join, and their limit of memory."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_operator.plan.losses.error_text import without_chatter
from elasticjob_operator.plan.state.model import Job, JobSpec
from elasticjob_operator.plan.template.containers import memory_limit
from elasticjob_operator.plan.template.torchrun_flags import why_apart

AGAIN = "delete the job, and apply it again without"
ALONE = "so each pod trains alone"
UNLESS = (
    "If the script does not start torchrun itself, each pod trains alone: delete the job, and apply it again "
    "with torchrun instead"
)


def why(**container: Any) -> str:
    template = {"spec": {"containers": [{"name": "train", **container}]}}
    return why_apart(Job("team", "job", "uid", 1, JobSpec(template=template)))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["torchrun", "train.py", "--standalone"], ""),
        (["torchrun", "--rdzv-conf=timeout=5", "train.py"], ""),
        (["torchrun", "--max-restarts=3", "train.py"], ""),
        (["torchrun", "--rdzv_backend", "k8s", "train.py"], ""),
        (
            ["torchrun", "--standalone", "train.py"],
            f"its command has the flag --standalone, {ALONE}: {AGAIN} it",
        ),
        (
            ["sh", "-c", "torchrun --standalone --nnodes=1 train.py && upload"],
            f"its command has the flags --standalone, --nnodes=1, {ALONE}: {AGAIN} them",
        ),
        (
            ["torchrun", "--standalone", "--nnodes=1", "--rdzv-id=a", "--rdzv-backend=c10d", "train.py"],
            f"its command has the flags --standalone, --nnodes=1, --rdzv-id=a, --rdzv-backend=c10d, {ALONE}: "
            f"{AGAIN} them",
        ),
        (
            ["torchrun", "--rdzv-backend=c10d", "train.py"],
            "its command has the flag --rdzv-backend=c10d, which overrides what the operator sets: "
            f"{AGAIN} it",
        ),
        (["python", "train.py"], f"its command runs python, not torchrun. {UNLESS}"),
        (
            ["/bin/python3.11", "-u", "train.py"],
            f"its command runs /bin/python3.11, not torchrun. {UNLESS}",
        ),
        (["python", "-m", "torch.distributed.run", "train.py"], ""),
        (["python", "-c", "import train"], ""),
        (["sh", "-c", "python train.py"], ""),
        (["./run.sh"], ""),
        ([], ""),
        ("torchrun --standalone", ""),
    ],
)
def test_only_what_the_command_shows_is_said(command: list[str], said: str) -> None:
    assert why(command=command) == said


def test_arguments_count_and_the_images_own_command_is_not_known() -> None:
    assert why(command=["python"], args=["train.py"]) == f"its command runs python, not torchrun. {UNLESS}"
    assert why(args=["python", "train.py"]) == ""
    assert why(args=["--standalone", "train.py"]) == (
        f"its command has the flag --standalone, {ALONE}: {AGAIN} it"
    )


def test_a_job_without_a_template_shows_nothing() -> None:
    assert why_apart(Job("team", "job", "uid", 1, JobSpec())) == ""


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"limits": {"memory": "8Gi"}}, "8Gi"),
        ({"limits": None}, ""),
        ("?", ""),
        ({"requests": {"memory": "1"}}, ""),
    ],
)
def test_the_limit_of_memory_is_the_training_container_s(resources: Any, said: str) -> None:
    containers = [{"name": "train", "resources": resources}, {"name": "other", "resources": {}}]
    assert memory_limit({"spec": {"containers": containers}}) == said
    assert memory_limit(None) == ""


def test_what_torch_adds_to_each_error_is_left_out() -> None:
    error = "RuntimeError: [pair.cc:545] Read error [10.0.0.1]:8080: Connection reset by peer"
    advice = ". This is typically caused by a remote worker hanging or bugs in the application. GLHF!"
    assert without_chatter(error + advice) == error
    for own in (
        "ValueError: bad. This is mine",
        "ValueError: NaN. This may indicate a corrupt shard: /data/7",
    ):
        assert without_chatter(own) == own
