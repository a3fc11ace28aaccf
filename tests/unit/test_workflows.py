"""The files below .github name what is there, and agree with packages and documents. Whether GitHub would
take them: ``make lint`` (tests/workflows.py)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomllib

from devcluster.build import default_kubernetes, kubernetes_versions
from tests.docs_commands import blocks, documents
from tests.matrix.environments import ENVIRONMENTS, PYTHONS
from tests.workflows import ACTIONS, DEPENDABOT, GITHUB, ROOT, WORKFLOWS, load, steps

FILES = [*WORKFLOWS, *ACTIONS]
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMPATIBILITY = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
CLASSIFIER = "Programming Language :: Python :: 3."
NAMED = re.compile(r"(?<![\w/])(?:\.ci|crds|deploy|docker|docs)/[\w./-]*\w")
MADE = re.compile(r"\bmake (?!\.venv)([\w-]+)")
PINNED = re.compile(r"\./\S+|[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def needs(target: str) -> list[str]:
    """What the Makefile makes first."""
    (found,) = re.findall(rf"^{target}:([^#\n]*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return str(found).split()


def workflow(name: str) -> dict[Any, Any]:
    return load(GITHUB / "workflows" / f"{name}.yaml")


def matrix(name: str, job: str, variable: str) -> list[str]:
    values: list[str] = workflow(name)["jobs"][job]["strategy"]["matrix"][variable]
    return values


def scripts(file: Path) -> list[str]:
    return [step["run"] for step in steps(file) if "run" in step]


def row(first: str) -> list[str]:
    """The versions in each of the other columns of a row of the page's table."""
    (found,) = re.findall(rf"^\| {re.escape(first)} \|(.*)\|$", COMPATIBILITY, re.MULTILINE)
    return str(found).split("|")


def versions(text: str) -> list[str]:
    return re.findall(r"\b\d\.\d+\b", text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_each_target_that_is_made_is_there(file: Path) -> None:
    jobs = load(file).get("jobs", {}).values()
    many = [target for job in jobs for target in job.get("strategy", {}).get("matrix", {}).get("target", ())]
    made = [target for script in scripts(file) for target in MADE.findall(script)]
    assert set(made + many) <= TARGETS


def test_a_pull_request_gets_what_ci_runs() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    lines = [line.partition("#")[0].split() for line in re.findall(r"^make (.*)$", run, re.MULTILINE)]
    made = {word for line in lines for word in line if not word.startswith("-")}
    assert {"lint", "test"} <= made <= TARGETS
    first = {needed for target in made for needed in needs(target)}
    assert {f"make {target}" for target in made - first} <= set(scripts(GITHUB / "workflows" / "test.yaml"))


def test_each_night_runs_what_is_too_slow_for_a_pull_request() -> None:
    """Measurements, and what needs root or a reader, are run by hand."""
    (slower,) = re.findall(r"Slower: (.*);\n", (ROOT / "CONTRIBUTING.md").read_text())
    runs = {
        name for script in scripts(GITHUB / "workflows" / "nightly.yaml") for name in MADE.findall(script)
    }
    assert set(MADE.findall(slower)) == runs | set(matrix("nightly", "long", "target"))


def test_each_file_that_is_named_is_there() -> None:
    named = {name for file in WORKFLOWS for script in scripts(file) for name in NAMED.findall(script)}
    assert {".ci/release-notes", "docker/lock.sh", "docs/use/quickstart.md"} <= named
    changed = workflow("kubernetes")[True]["pull_request"]["paths"]  # `on` is a word for true in YAML 1.1
    named |= {path.partition("/**")[0] for path in changed}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_workflows_run_the_blocks_that_say_so() -> None:
    said = {
        (str(document.relative_to(ROOT)), block.workflow)
        for document in documents()
        for block in blocks(document.read_text())
        if block.workflow
    }
    known = {
        (str(document.relative_to(ROOT)), block.name)
        for document in documents()
        for block in blocks(document.read_text())
    }
    run = {
        (document, name)
        for file in WORKFLOWS
        for script in scripts(file)
        for document, names in re.findall(r"tests\.docs_commands run (\S+) (.+)", script)
        for name in names.split()
    }
    assert said <= run <= known


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_actions_are_pinned_by_commit(file: Path) -> None:
    used = re.findall(r"uses: (.*)$", file.read_text(), re.MULTILINE)
    assert [one for one in used if not PINNED.fullmatch(one)] == []


def test_an_action_has_one_commit_everywhere() -> None:
    used = {one for file in FILES for one in re.findall(r"uses: ([^.\s].*)$", file.read_text(), re.MULTILINE)}
    assert len(used) == len({one.partition("@")[0] for one in used})


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_may_do_little_and_ends(file: Path) -> None:
    content = load(file)
    assert content["permissions"] == {"contents": "read"}
    assert content["concurrency"]["group"]
    for job in content["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 120
        checkouts = [s for s in job.get("steps", ()) if s.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_only_a_release_may_write() -> None:
    rights = {
        (file.stem, name, right)
        for file in WORKFLOWS
        for name, job in load(file)["jobs"].items()
        for right, level in job.get("permissions", {}).items()
        if level == "write"
    }
    assert rights == {
        ("release", "images", "packages"),
        ("release", "chart", "packages"),
        ("release", "publish", "id-token"),
        ("release", "notes", "contents"),
    }


def test_versions_of_python_agree() -> None:
    def promised(package: str) -> list[str]:
        project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
        assert project["requires-python"] in (">=3.10", ">=3.11")
        return [one.rpartition(" ")[2] for one in project["classifiers"] if one.startswith(CLASSIFIER)]

    assert promised("operator") == promised("devcluster") == matrix("test", "test", "python")
    assert versions(row("Python of the operator")[2]) == promised("operator")
    assert promised("handler") == matrix("test", "handler", "python") == list(PYTHONS)
    assert versions(row("Python of training images")[2]) == promised("handler")
    for package, page in (("operator", "Python of the operator"), ("handler", "Python of training images")):
        supported, run, _ = row(page)
        assert versions(supported)[0] == promised(package)[0]
        assert set(versions(run)) <= set(promised(package))


def test_versions_of_torch_agree() -> None:
    assert matrix("nightly", "torch", "torch") == list(ENVIRONMENTS)
    tested = [version for version in ENVIRONMENTS if version != "newest"]
    assert versions(row("torch")[1]) == tested


def test_versions_of_kubernetes_agree() -> None:
    supported, run, planned = row("Kubernetes")
    assert versions(planned) == matrix("kubernetes", "minikube", "kubernetes")
    whole, _, in_part = run.partition(";")
    assert versions(whole) == [default_kubernetes()]
    assert versions(in_part) == [other for other in kubernetes_versions() if other != default_kubernetes()]
    least = versions((ROOT / "charts" / "elasticjob" / "Chart.yaml").read_text().partition("kubeVersion")[2])[
        0
    ]
    assert versions(supported)[0] == versions(planned)[0] == least


def test_dependabot_looks_where_something_is() -> None:
    kinds = {
        "github-actions": ["action.yaml", ".github/workflows"],
        "pip": ["pyproject.toml", "*-requirements.txt"],
        "docker": ["*.Dockerfile"],
        "gomod": ["go.mod"],
    }
    seen = set()
    for update in load(DEPENDABOT)["updates"]:
        kind = update["package-ecosystem"]
        for folder in update.get("directories") or [update["directory"]]:
            found = ROOT / folder.lstrip("/")
            assert any(list(found.glob(pattern)) for pattern in kinds[kind]), folder
            seen.add((kind, found))
    assert {("github-actions", file.parent) for file in ACTIONS} <= seen
    packages = {
        ("pip", file.parent) for folder in ("*", ".") for file in ROOT.glob(f"{folder}/pyproject.toml")
    }
    assert packages <= seen


def test_the_quickstart_changes_the_example_as_it_says() -> None:
    (command,) = re.findall(
        r"^sed '(.*)' (\S+) \|", (ROOT / "docs/use/quickstart.md").read_text(), re.MULTILINE
    )
    example = (ROOT / command[1]).read_text()
    for old in re.findall(r"s/(.*?)/", command[0]):
        assert example.count(old) == 1


def notes(tree: Path, tag: str, registry: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / ".ci" / "release-notes", tag],
        env={"PATH": "/usr/bin:/bin", "REGISTRY": registry},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_release_waits_for_what_the_publisher_fills_in(tmp_path: Path) -> None:
    for name in (
        *(".ci/release-notes", "CHANGELOG.md", "SECURITY.md"),
        *("handler/elasticjob/__init__.py", "charts/elasticjob/values.yaml"),
        "charts/elasticjob/Chart.yaml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def change(name: str, old: str, new: str) -> None:
        text = (tmp_path / name).read_text()
        assert text.count(old) == 1
        (tmp_path / name).write_text(text.replace(old, new))

    assert "the tag is for 9.9.9" in notes(tmp_path, "v9.9.9").stderr
    assert "CHANGELOG.md has no date for 0.1.0" in notes(tmp_path, "v0.1.0").stderr
    change("CHANGELOG.md", "[0.1.0] - Unreleased", "[0.1.0] - 2027-01-31")
    assert "SECURITY.md does not say how to report" in notes(tmp_path, "v0.1.0").stderr
    change("SECURITY.md", "> **The publisher fills this in:**", "Write to us:")
    for field, line in (
        ("home", "home: https://git.example/x"),
        ("sources", "sources: [https://git.example/x]"),
    ):
        refusal = notes(tmp_path, "v0.1.0").stderr
        assert f"charts/elasticjob/Chart.yaml does not have {field}, the address of the repository" in refusal
        change("charts/elasticjob/Chart.yaml", "\ntype: application\n", f"\ntype: application\n{line}\n")
    assert "does not have registry.example/x" in notes(tmp_path, "v0.1.0", "registry.example/x").stderr
    here = "repository: ghcr.io/elasticjob/elasticjob-operator"
    change("charts/elasticjob/values.yaml", '\n  repository: ""', f"\n  {here}")
    released = notes(tmp_path, "v0.1.0", "ghcr.io/elasticjob")
    assert released.returncode == 0, released.stderr
    assert released.stdout.strip().startswith("The first version.")
    assert "## " not in released.stdout.replace("### ", "")
