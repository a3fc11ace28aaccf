"""Documents do not contradict each other, nor the chart: what one page says of these, all say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from elasticjob_operator.settings import HANDLER_IMAGE
from tests.docs_commands import ROOT, blocks, documents

READ = [
    document
    for document in documents()
    if document.name != "CHANGELOG.md"
    and "internals" not in document.parts
    and "reference" not in document.parts
]
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def paragraphs(document: Path) -> Iterator[str]:
    """The paragraphs, list items and rows of tables, each as one line."""
    for text in re.split(r"\n\s*\n|\n(?=- |\| |\d\. )", document.read_text()):
        yield " ".join(text.split())


@pytest.mark.parametrize("document", documents(), ids=lambda document: str(document.relative_to(ROOT)))
def test_an_upgrade_forgets_no_new_value(document: Path) -> None:
    """`--reuse-values` does: install.md says why, and so no command may have it."""
    for block in blocks(document.read_text()):
        assert not re.search(r"(?<!reset-then)-+reuse-values", block.text)


@pytest.mark.parametrize("document", READ, ids=lambda document: str(document.relative_to(ROOT)))
def test_a_page_that_mentions_kueue_leads_to_its_page(document: Path) -> None:
    page, ours = document.read_text(), "devcluster" not in document.parts
    if ours and re.search(r"\bKueue\b", page) and document.name != "kueue.md":
        assert "kueue.md" in page or "kueue.enabled" in page


@pytest.mark.parametrize("document", READ, ids=lambda document: str(document.relative_to(ROOT)))
def test_no_page_promises_an_image_that_is_not_published(document: Path) -> None:
    """As long as the chart has no default: a release gives it one, and these sentences go."""
    values = yaml.safe_load((ROOT / "charts" / "elasticjob" / "values.yaml").read_text())
    assert values["handler"]["image"]["repository"] == values["image"]["repository"] == ""
    for text in paragraphs(document):
        if HANDLER_IMAGE.rpartition(":")[0] in text:
            assert "not published" in text


@pytest.mark.parametrize("document", READ, ids=lambda document: str(document.relative_to(ROOT)))
def test_pods_on_a_silent_node_are_not_to_be_deleted_by_force(document: Path) -> None:
    """That counts as proof that they have stopped."""
    for text in paragraphs(document):
        if "--force" in text and re.search(r"\bnodes?\b", text):
            assert re.search(r"[Dd]o not delete", text), text


@pytest.mark.parametrize("document", READ, ids=lambda document: str(document.relative_to(ROOT)))
def test_a_page_on_the_loss_of_all_nodes_names_the_checkpoints_that_need_no_proof(document: Path) -> None:
    page = " ".join(document.read_text().split())
    if re.search(r"all (?:its|their) nodes|all nodes of a round|WaitingForFencing \|", page):
        assert re.search(
            r"elasticjob\.checkpoint|checkpoints\.md|failures\.md#fencing|waiting-for-fencing\.md", page
        )


def with_jobs() -> Iterator[tuple[str, list[str]]]:
    """Each piece of YAML in which there is an ElasticJob: where it is, and the kinds in it."""
    for document in documents():
        for piece in YAML.findall(document.read_text()):
            yield str(document.relative_to(ROOT)), kinds(piece)
    for file in (ROOT / "examples").rglob("*.yaml"):
        yield str(file.relative_to(ROOT)), kinds(file.read_text())


def kinds(text: str) -> list[str]:
    """The kinds of objects in a file of YAML."""
    return re.findall(r"^kind: (\w+)", text, re.MULTILINE)


def test_deleting_a_job_by_its_file_deletes_no_checkpoints() -> None:
    found = [(where, inside) for where, inside in with_jobs() if "ElasticJob" in inside]
    assert len(found) > 3
    assert [where for where, inside in found if "PersistentVolumeClaim" in inside] == []
