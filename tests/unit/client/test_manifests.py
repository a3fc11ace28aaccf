"""What `run --dry-run -o yaml` prints is edited by people, and says what it was made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticjob_client.cli.manifests import as_yaml
from elasticjob_client.explain.terminal_text import plain

SCRIPT = """\
import sys   \n
def main():
\tprint("größer: 'a' \\t {x}", file=sys.stderr)  # tabs, and a blank at the end \n

    return 1


main()
"""


def test_a_script_is_a_block_that_can_be_read(run: Callable[..., Result], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    asked = ("run", str(script), "--image", "i", "--name", "new", "--dry-run", "client", "-o", "yaml")
    text = run(*asked).stdout
    block = [f"    {line}" if line else "" for line in SCRIPT.split("\n")]
    assert "\n".join(["  train.py: |", *block]) in text
    code, _ = yaml.safe_load_all(text)
    assert code["data"]["train.py"] == SCRIPT


@given(
    st.lists(
        st.text(st.sampled_from("ab \t\n\r:#-'\"|>\\\x1b\x85\u202e\u2028\ufeffé😀{[&*!%@`,")), max_size=3
    )
)
@example(["  indented first\nb\n\n"])
@example(["\ttab first\nb"])
@example(["a\n\n\n", "\n\na", "a \n b\t\n", "--- \n...\n"])
@settings(max_examples=300, deadline=None)
def test_what_is_read_is_what_was_written(texts: list[str]) -> None:
    made = as_yaml([{"data": {f"k{n}": text for n, text in enumerate(texts)}}])
    assert plain(made) == made
    found = yaml.safe_load(made)["data"]
    assert [found[f"k{n}"] for n in range(len(texts))] == texts


@pytest.mark.parametrize("text", ["a\r\nb\r\n", "a\x1b[2J\nb", "\ta\nb"])
def test_what_a_block_cannot_say_is_quoted(text: str) -> None:
    made = as_yaml([{"a": text}])
    assert made.startswith('a: "')
    assert yaml.safe_load(made) == {"a": text}
