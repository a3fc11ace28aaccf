"""Commands in documents: each is run by a test, or says why none can."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_commands import PAGE, ROOT, Block, blocks, documents, page, run, script

DOCUMENTS = [str(document.relative_to(ROOT)) for document in documents()]
TESTS = "".join(
    path.read_text()
    for folder in ("tests", "devcluster/tests")
    for pattern in ("test_*.py", "conftest.py")
    for path in (ROOT / folder).rglob(pattern)
)
PROGRAM = r"(?:docker|helm|kopf|kubectl|make|pip|pytest|python\S*) "
COMMANDS = re.compile(rf"^```(?!sh$|console$)[\w-]*\n(?:\$ |(?:[A-Z_]+=\S+ )*{PROGRAM})", re.MULTILINE)
"""A fence of commands, or of what a terminal shows, that is not said to be one."""
INDENTED = re.compile(rf"^\n {{4}}{PROGRAM}", re.MULTILINE)


def words(document: str, test: str, **variables: str) -> str:
    """Run what a document tells to, with this Python first in the path; returns what it printed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return run(ROOT / document, test, {**os.environ, "PATH": path, **variables})


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_is_run_or_says_why_not(document: str) -> None:
    text = (ROOT / document).read_text()
    found = list(blocks(text))
    assert [block.line for block in found if not block.test and not block.not_run] == []
    assert not COMMANDS.search(text)
    assert not INDENTED.search(text)
    names = {block.test for block in found if block.test}
    assert [name for name in names if f'("{document}", "{name}"' not in TESTS] == []


def test_the_page_of_commands_that_are_not_run() -> None:
    assert page() == PAGE.read_text(), "python -m tests.docs_commands writes it anew"
    named = set(re.findall(r"`(test_\w+)`", page()))
    assert named
    assert [name for name in named if f"def {name}(" not in TESTS] == []
    files = re.findall(r"`(tests/[\w/]+\.py)`", page())
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_a_call_of_report_progress_is_measured_as_documented(tmp_path: Path) -> None:
    printed = words("docs/reference/backend.md", "progress", TMPDIR=str(tmp_path))
    assert re.search(r"^1000000 loops, best of 1: .* per loop$", printed, re.MULTILINE)
    (progress,) = tmp_path.glob("*/[0-9]*")
    assert progress.stat().st_size == 40


def test_a_call_of_should_stop_is_measured_as_documented(tmp_path: Path) -> None:
    printed = words("docs/reference/backend.md", "should_stop", TMPDIR=str(tmp_path))
    assert re.search(r"^1000000 loops, best of 1: .* per loop$", printed, re.MULTILINE)
    (own,) = tmp_path.glob("*/[0-9]*.stop")
    assert int.from_bytes(own.read_bytes(), sys.byteorder) >> 2 == 999_999


def test_the_plan_of_a_chaos_run_is_printed() -> None:
    printed = words("docs/internals/chaos.md", "plan")
    assert len(re.findall(r"^ +\d+\.\d  \w", printed, re.MULTILINE)) > 20


def test_the_script_of_the_page_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    """And says so, without any set-up of logging."""
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "use" / "writing.md").read_text(), re.DOTALL)
    assert example is not None
    shorter = example[1].replace("STEPS = 1000", "STEPS = 200")
    assert shorter != example[1]
    (tmp_path / "train.py").write_text(shorter)
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }

    def train(number: int) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env={**os.environ, **alone, "ELASTICJOB_ROUND": str(number), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        )
        return done.stdout, done.stderr

    assert train(1)[0] == "rank 0 of 1 begins after step 0\n"
    last = tmp_path / "checkpoints" / "checkpoint-g0001-r000001-s00000200"
    (last / "complete.json").unlink()
    printed, told = train(2)
    assert printed == "rank 0 of 1 begins after step 100\n"
    assert re.search(r"elasticjob\.checkpoint: resumed from .*s00000100: step 100,", told)
    assert not last.exists()
    assert (last.parent / "checkpoint-g0001-r000002-s00000200").exists()


def test_the_versions_of_a_chaos_run_are_read(tmp_path: Path) -> None:
    version = {
        "at": 7.5,
        "object": {"status": {"currentRound": {"number": 3, "phase": "Broken", "message": "lost"}}},
    }
    nothing: dict[str, object] = {"at": 1.0, "object": {}}
    (tmp_path / "versions.jsonl").write_text(f"{json.dumps(nothing)}\n{json.dumps(version)}\n")
    printed = words("docs/internals/chaos.md", "versions", FOLDER=str(tmp_path)).splitlines()
    assert printed[-1] == "7.5 3 Broken lost"


def test_blocks_of_a_document() -> None:
    text = """
<!-- test: a -->
```sh
one
```

```yaml
not: shell
```
<!-- not run: there is no moon -->
```
two
```
<!-- test: b -->

```sh
three
```
<!-- workflow: c; the moon is far away -->
```sh
four
```
"""
    assert list(blocks(text)) == [
        Block("one\n", 3, name="a"),
        Block("two\n", 11, not_run="there is no moon"),
        Block("three\n", 16),
        Block("four\n", 20, name="c", not_run="the moon is far away"),
    ]
    assert [(block.test, block.workflow) for block in blocks(text)] == [
        ("a", ""),
        ("", ""),
        ("", ""),
        ("", "c"),
    ]


def test_a_script_is_all_blocks_of_its_name_and_ends_at_the_first_error(tmp_path: Path) -> None:
    document = tmp_path / "x.md"
    document.write_text(
        "<!-- test: a -->\n```sh\necho $WHAT\n```\n<!-- test: b -->\n```sh\nfalse\necho never\n```\n"
        "<!-- test: a -->\n```sh\necho again\n```\n"
    )
    assert script(document, "a") == "echo $WHAT\necho again\n"
    printed = run(document, "a", {"WHAT": "hello"}).splitlines()
    assert [line for line in printed if not line.startswith("+")] == ["hello", "again"]
    with pytest.raises(AssertionError, match="ended with 1"):
        run(document, "b", {})
    with pytest.raises(ValueError, match="no block of the name c"):
        script(document, "c")
