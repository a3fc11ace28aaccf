"""Which workers may be warm, and how many interpreters may wait: decisions without processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticjob.agent.settings import Settings, SettingsError, read_settings
from elasticjob.contract import names
from elasticjob.warm.container_memory import private_bytes, read_memory
from elasticjob.warm.eligibility import (
    PER_ROUND,
    Start,
    can_be_left_out,
    fixed,
    imports,
    mismatch,
    refusal,
)
from elasticjob.warm.interpreter_count import MIB, SIZE, Memory, count, used_by_training

PYTHON = "/opt/bin/python3"
GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ((PYTHON, "-u", "train.py", "--lr=1"), ""),
        ((PYTHON, "-u", "-m", "package.train", "x"), ""),
        ((), "empty"),
        (("/bin/sh", "-c", "train"), "/bin/sh"),
        (("numactl", "--cpunodebind=0", PYTHON, "-u", "train.py"), "numactl"),
        (("/usr/bin/python3", "-u", "train.py"), "/usr/bin/python3"),
        ((PYTHON, "train.py"), "python -u SCRIPT"),
        ((PYTHON, "-u"), "python -u SCRIPT"),
        ((PYTHON, "-u", "-m"), "names no module"),
        ((PYTHON, "-u", "-X", "dev", "train.py"), "option -X"),
        ((PYTHON, "-u", "app.pyz"), "app.pyz is not a file *.py"),
    ],
)
def test_commands(args: tuple[str, ...], part: str) -> None:
    found = refusal(args, PYTHON)
    assert bool(found) == bool(part)
    assert part in found


def start(*args: str, cwd: str = "/work", **env: str) -> Start:
    return Start((PYTHON, "-u", *args), env, cwd)


def test_what_belongs_to_a_round_may_differ() -> None:
    made = start("t.py", HOME="/h")
    wanted = start("t.py", HOME="/h", **dict.fromkeys(PER_ROUND, "x"))
    assert mismatch(made, wanted) == ""
    assert fixed(wanted.env) == {"HOME": "/h"}


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (start("t.py", "--more", HOME="/h"), "its command line is another"),
        (start("t.py", HOME="/h", cwd="/"), "the working directory is another"),
        (start("t.py", HOME="/other"), "its environment is another: HOME"),
        (start("t.py"), "its environment is another: HOME"),
        (start("t.py", HOME="/h", B="", A=""), "its environment is another: A, B"),
    ],
)
def test_nothing_else_may(wanted: Start, why: str) -> None:
    assert mismatch(start("t.py", HOME="/h"), wanted) == why


def test_what_is_imported() -> None:
    assert imports("", ()) == ("torch", "torch.distributed", "torch._dynamo")
    assert imports("", ("torch", "transformers")) == (
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "transformers",
    )
    assert imports("os.environ['TORCHDYNAMO_DISABLE'] = '1'", ()) == ("torch", "torch.distributed")


@pytest.mark.parametrize(
    "script",
    ["from elasticjob.checkpoint import Checkpoints", "import torch.distributed.checkpoint as dcp"],
)
def test_a_script_with_checkpoints_finds_what_they_import_of_torch(script: str) -> None:
    more = ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict")
    assert imports(script, ()) == ("torch", "torch.distributed", "torch._dynamo", *more)
    assert imports(script + "\nos.environ['TRITON_X'] = '1'", ()) == ("torch", "torch.distributed")


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_where_memory_is_not_short_there_is_one_for_each_worker(workers: int) -> None:
    assert count(Memory(64 * GIB, 40 * GIB), workers, 0).number == workers
    assert count(None, workers, 0).number == workers


def test_training_comes_first() -> None:
    # 10 % of 16 GiB stay free: less than 1,639 MiB.
    assert count(Memory(16 * GIB, 1639 * MIB + SIZE), 8, 0).number == 1
    few = count(Memory(16 * GIB, 1639 * MIB + 3 * SIZE), 8, 0)
    assert few.number == 3
    assert few.why == (
        "2839 MiB of 16384 MiB are free, each takes 400 MiB, and 10% of the limit is left free"
    )
    assert count(Memory(16 * GIB, 100 * MIB), 8, 0).number == 0
    assert count(Memory(16 * GIB, 4 * GIB), 8, 0, size=GIB).number == 2, "as large as they turned out to be"


def test_those_that_wait_have_their_memory_already() -> None:
    assert count(Memory(16 * GIB, 1639 * MIB + SIZE), 8, 3).number == 4
    assert count(Memory(16 * GIB, GIB), 8, 3).number == 3, "between half of the reserve and all of it"


def test_room_is_left_for_the_highest_use_seen() -> None:
    memory = Memory(16 * GIB, 7 * GIB)
    assert count(memory, 8, 0).number == 8
    few = count(memory, 8, 0, highest=14 * GIB - 800 * MIB)
    assert few.number == 3
    assert few.why.startswith(
        "7168 MiB of 16384 MiB are free, training has used 4320 MiB more before, as in a save, each takes"
    )
    assert count(memory, 8, 0, highest=15 * GIB).number == 0
    assert count(memory, 8, 5, highest=14 * GIB - 800 * MIB).number == 5, "and half of the reserve is kept"
    assert count(memory, 8, 8, highest=14 * GIB - 800 * MIB).number == 5


def test_what_grows_fast_grows_on() -> None:
    assert count(Memory(16 * GIB, 3 * GIB), 8, 8).number == 8
    assert count(Memory(16 * GIB, 3 * GIB), 8, 8, growth=GIB // 4).number == 8
    assert count(Memory(16 * GIB, 3 * GIB), 8, 8, growth=2 * GIB).number == 1


def test_what_others_of_the_node_use_is_only_what_they_use_now() -> None:
    memory = Memory(512 * GIB, 60 * GIB, own=16 * GIB)
    assert used_by_training(memory, 8, SIZE) == 16 * GIB - 8 * SIZE
    assert count(memory, 8, 0).number == 8
    assert count(memory, 8, 0, highest=18 * GIB).number == 8
    few = count(memory, 8, 0, highest=24 * GIB)
    assert few.number == 2
    assert few.why.startswith("61440 MiB of 524288 MiB are free, training has used 8192 MiB more before")
    assert count(memory, 8, 8, growth=20 * GIB).number == 0
    assert count(memory, 8, 8, highest=14 * GIB, growth=20 * GIB).number == 8, "it has grown to that before"


@pytest.mark.parametrize("copied", [1, 3, 5, 6])
def test_a_save_that_copies_the_model_finds_its_memory(copied: int) -> None:
    """A container of 16 GiB, training takes 9, eight that wait 3.1; a save copies 5 GiB within a second, five
    looks long, and does so again and again."""
    limit, highest, idle, before = 16 * GIB, 0, 8, None
    numbers = []
    for _ in range(4):
        for copy in [0, 0, 0, *(copied * GIB * part // 5 for part in range(1, 6)), 0, 0]:
            training = 9 * GIB + copy
            assert training + idle * SIZE <= limit, "the kernel would kill the container"
            memory = Memory(limit, limit - training - idle * SIZE)
            growth = 0 if before is None else memory.used - before
            number = count(memory, idle, idle, SIZE, highest, growth).number
            highest = max(highest, used_by_training(memory, idle, SIZE))
            before = memory.used if number == idle else None
            idle = number
        numbers.append(idle)
        memory = Memory(limit, limit - 9 * GIB - idle * SIZE)
        idle, before = count(memory, 8, idle, SIZE, highest).number, None
    assert numbers[-1] == idle, "and no more are made than stay"
    assert idle == {1: 8, 3: 6, 5: 1, 6: 0}[copied]


def test_they_are_given_back_when_memory_is_short() -> None:
    assert count(Memory(16 * GIB, 819 * MIB - 1), 8, 8).number == 5
    assert count(Memory(16 * GIB, 0), 2, 2).number == 0


def cgroup(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


V2 = {
    "memory.max": "1000\n",
    "memory.current": "700\n",
    "memory.stat": "anon 100\ninactive_file 250\nactive_file 50\n",
}
V1 = {
    "memory/memory.limit_in_bytes": "1000\n",
    "memory/memory.usage_in_bytes": "700\n",
    "memory/memory.stat": "inactive_file 9\ntotal_inactive_file 250\ntotal_active_file 50\n",
}
V1_LIMIT = "memory/memory.limit_in_bytes"


@pytest.mark.parametrize("files", [V2, V1])
def test_memory_of_a_container(tmp_path: Path, files: dict[str, str]) -> None:
    assert read_memory(cgroup(tmp_path, files), tmp_path / "none") == Memory(1000, 550)


def test_memory_of_a_node(tmp_path: Path) -> None:
    node = tmp_path / "meminfo"
    node.write_text("MemTotal:  16 kB\nMemFree: 1 kB\nMemAvailable:    8 kB\n")
    assert read_memory(tmp_path, node) == Memory(16384, 8192)
    assert read_memory(cgroup(tmp_path, V2), node) == Memory(1000, 550)
    assert read_memory(cgroup(tmp_path, {**V2, "memory.max": "max\n"}), node) == Memory(16384, 8192, 400)
    without_limit = cgroup(tmp_path / "v1", {**V1, V1_LIMIT: f"{2**63 - 4096}\n"})
    assert read_memory(without_limit, node) == Memory(16384, 8192, 400)
    assert read_memory(tmp_path / "none", tmp_path / "none") is None


def test_memory_of_a_process() -> None:
    import os

    assert (private_bytes(os.getpid()) or 0) > MIB
    assert private_bytes(0) is None


def settings(**config: Any) -> Settings:
    return read_settings("job", config, None)


def test_it_is_off_unless_it_is_switched_on() -> None:
    assert (settings().warm, settings().warm_imports) == (False, ())
    assert settings(warm="on").warm
    assert not settings(warm="off").warm
    assert settings(warm="on", warm_imports="transformers:datasets.x").warm_imports == (
        "transformers",
        "datasets.x",
    )


def test_the_job_s_word_holds_where_the_command_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.WARM_ENV, "on")
    monkeypatch.setenv(names.WARM_IMPORTS_ENV, "transformers:datasets")
    assert settings().warm_imports == ("transformers", "datasets")
    assert settings(warm_imports="peft").warm_imports == ("peft",)
    assert (settings(warm="off").warm, settings(warm="off").warm_imports) == (False, ())
    monkeypatch.setenv(names.WARM_ENV, "off")
    assert (settings().warm, settings().warm_imports) == (False, ())
    assert settings(warm="on").warm
    monkeypatch.setenv(names.WARM_ENV, "1")
    with pytest.raises(SettingsError, match="ELASTICJOB_WARM_WORKERS is '1', expected on or off"):
        settings()


def test_only_what_the_user_has_added_can_be_left_out() -> None:
    assert can_be_left_out("transformers", ("transformers",))
    assert not can_be_left_out("torch", ("torch", "transformers"))
    assert not can_be_left_out("fractions", ())


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"warm": "yes"}, "warm is 'yes', expected on or off"),
        ({"warm_imports": "a"}, "add warm=on"),
        ({"warm": "on", "warm_imports": "a b"}, "warm_imports is 'a b', expected names of modules"),
    ],
)
def test_wrong_settings(config: dict[str, str], part: str) -> None:
    with pytest.raises(SettingsError, match=part):
        settings(**config)
