"""Commands in documents: each is run by a test, or says why none can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs_commands import ROOT, Block, blocks, run, script

MARKED = ("docs/install.md",)
"""Documents of whose shell commands every block has a mark."""
TESTS = "".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))


@pytest.mark.parametrize("document", MARKED)
def test_every_block_is_run_or_says_why_not(document: str) -> None:
    found = list(blocks((ROOT / document).read_text()))
    assert found
    assert [block.line for block in found if not block.test and not block.not_run] == []


@pytest.mark.parametrize("document", ["README.md", *MARKED])
def test_every_block_that_a_test_shall_run_has_one(document: str) -> None:
    names = {block.test for block in blocks((ROOT / document).read_text()) if block.test}
    assert names
    assert [name for name in names if f'("{document}", "{name}"' not in TESTS] == []


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
"""
    assert list(blocks(text)) == [
        Block("one\n", 3, test="a"),
        Block("two\n", 11, not_run="there is no moon"),
        Block("three\n", 16),
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
    with pytest.raises(ValueError, match="has no block"):
        script(document, "c")
