"""What torchrun will start, read from its command before torchrun has read it."""

from __future__ import annotations

import pytest

from elasticjob.contract import launch_command
from elasticjob.warm.eligibility import Start
from elasticjob.warm.torchrun_command import Workers, environment, serves, torchruns_own, workers

PET = {"PET_RDZV_BACKEND": "k8s", "PET_RDZV_CONF": "warm=on", "PET_NPROC_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("/usr/bin/python /usr/bin/torchrun train.py", "train.py"),
        ("python -u -B torchrun --tee=3 train.py", "--tee=3 train.py"),
        ("python -m torch.distributed.run train.py", "train.py"),
        ("python -m elasticjob.run train.py", "train.py"),
        ("python -u train.py torchrun", None),
        ("python -m torch.distributed.launch train.py", None),
        ("python -c torchrun", None),
        ("python -I torchrun train.py", None),
        ("python mytorchrun train.py", None),
        ("python", None),
    ],
)
def test_torchrun_is_known_by_its_command(command: str, own: str | None) -> None:
    found = torchruns_own(command.split())
    assert (None if found is None else " ".join(found)) == own


def test_the_workers_are_those_that_torchrun_starts() -> None:
    assert workers(["train.py", "--lr", "1"], PET) == Workers(("-u", "train.py", "--lr", "1"), 2)
    assert workers(["-m", "pack.age", "-x"], PET) == Workers(("-u", "-m", "pack.age", "-x"), 2)
    options = "--nproc_per_node 3 --rdzv-backend=k8s -t 3 --rdzv-conf=warm=on,warm_imports=a:b.c train.py"
    assert workers(options.split(), {}) == Workers(("-u", "train.py"), 3, ("a", "b.c"))
    spec = {"ELASTICJOB_WARM_WORKERS": "on", "ELASTICJOB_WARM_IMPORTS": "a:b.c", "PET_RDZV_BACKEND": "k8s"}
    assert workers(["train.py"], spec) == Workers(("-u", "train.py"), 1, ("a", "b.c"))
    assert workers(["--rdzv-conf=warm=off", "train.py"], spec) is None
    found = workers(["train.py", "--rank=${local_rank}"], PET)
    assert found is not None
    assert found.of(1) == ("-u", "train.py", "--rank=1")


def test_what_the_operator_sets_keeps_no_worker_from_being_made_early() -> None:
    set_by_operator = launch_command.environment("team/job", "uid", 4)
    assert workers(["train.py"], {**PET, **set_by_operator}) == Workers(("-u", "train.py"), 2)
    assert workers(["train.py"], {**PET, **set_by_operator, "PET_STANDALONE": "1"}) is None


@pytest.mark.parametrize(
    ("options", "env"),
    [
        ("--help", PET),
        ("", PET),
        ("--tee", PET),
        ("--nproc-per-node=gpu train.py", PET),
        ("--nproc-per-node=0 train.py", PET),
        (f"--nproc-per-node={'1' * 5000} train.py", PET),
        ("--rdzv-backend=c10d train.py", PET),
        ("--rdzv-conf=warm=off train.py", PET),
        ("--rdzv-conf=join_timeout=9 train.py", PET),
        ("--no-python train.sh", PET),
        ("--standalone train.py", PET),
        ("--rdzv-back=k8s train.py", PET),
        ("--numa-binding=node train.py", PET),
        ("train.py $local_rank", PET),
        ("train.py", {**PET, "PYTHON_EXEC": "python3"}),
        ("train.py", {**PET, "PET_RUN_PATH": "1"}),
        ("train.py", {**PET, "PET_RDZV_CONF": ""}),
        ("train.py", {}),
    ],
)
def test_what_is_not_known_for_certain_gives_none(options: str, env: dict[str, str]) -> None:
    assert workers(options.split(), env) is None


def test_the_environment_is_what_torchrun_makes_of_its_own() -> None:
    assert environment({"A": "1"}, 1) == {"A": "1", "PYTHONFAULTHANDLER": "1"}
    assert environment({"A": "1"}, 2)["OMP_NUM_THREADS"] == "1"
    assert environment({"OMP_NUM_THREADS": "4"}, 2)["OMP_NUM_THREADS"] == "4"


def test_one_serves_if_only_torchrun_s_own_names_were_added() -> None:
    made = Start(("python", "-u", "train.py"), {"A": "1"}, "/")

    def wanted(**env: str) -> Start:
        return Start(made.args, {"A": "1", **env}, made.cwd)

    assert serves(made, wanted())
    assert serves(made, wanted(TORCHELASTIC_SIGNALS_TO_HANDLE="SIGTERM", RANK="3"))
    assert not serves(made, wanted(B="2"))
    assert not serves(made, wanted(A="2"))
    assert not serves(made, Start((*made.args, "-x"), made.env, made.cwd))
    assert not serves(made, Start(made.args, made.env, "/tmp"))
