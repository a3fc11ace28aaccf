"""Which versions of Kubernetes there are, which one is taken, and what is said of one that isn't there."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from devcluster import build
from devcluster.cli import main
from devcluster.cluster import Cluster
from devcluster.commands import Options
from devcluster.kubelet import requirements
from devcluster.kubelet.cluster import KubeletCluster

DEFAULT = build.default_kubernetes()
VERSIONS = build.kubernetes_versions()
OTHERS = [version for version in VERSIONS if version != DEFAULT]


@pytest.fixture(autouse=True)
def nothing_chosen_nor_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(build.KUBERNETES_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_there_are_older_and_newer_ones_than_the_default() -> None:
    assert VERSIONS[0] != DEFAULT != VERSIONS[-1]
    assert DEFAULT in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_all_modules_of_a_version_are_of_it(version: str) -> None:
    modules = build.module_file(version)
    patch = build.kubernetes_version(version).removeprefix(f"v{version}.")
    staged = re.findall(r"=> k8s\.io/\S+ v0\.(\S+)$", modules.read_text(), re.MULTILINE)
    assert set(staged) == {f"{version.partition('.')[2]}.{patch}"}
    assert f"k8s.io/kubernetes v{version}.{patch} h1:" in modules.with_suffix(".sum").read_text()


def test_a_version_is_taken_from_the_options_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Cluster().kubernetes == DEFAULT
    monkeypatch.setenv(build.KUBERNETES_VARIABLE, OTHERS[0])
    assert Cluster().kubernetes == OTHERS[0]
    assert Cluster(options=Options(kubernetes=OTHERS[-1])).kubernetes == OTHERS[-1]
    assert Cluster(options=Options(kubernetes=DEFAULT)).kubernetes == DEFAULT


def test_each_version_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    monkeypatch.setattr(build, "_build", lambda target, *_: built.append(target))
    assert [build.ensure_built(version) for version in VERSIONS] == built
    assert len(set(built)) == len(VERSIONS)
    assert build.ensure_built() == built[VERSIONS.index(DEFAULT)]


def test_a_version_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    there_are = re.escape(", ".join(VERSIONS))
    with pytest.raises(ValueError, match=f"Kubernetes 1.2: it has {there_are}"):
        build.ensure_built("1.2")
    with pytest.raises(ValueError, match=there_are):
        Cluster(options=Options(kubernetes="1.2"))
    monkeypatch.setenv(build.KUBERNETES_VARIABLE, "1.2")
    with pytest.raises(ValueError, match=there_are):
        Cluster()


@pytest.mark.parametrize("command", ["build", "up"])
def test_the_command_line_refuses_a_version_that_is_not_there(command: str) -> None:
    for answer in (
        CliRunner().invoke(main, [command, "--kubernetes=1.2"]),
        CliRunner(env={build.KUBERNETES_VARIABLE: "1.2"}).invoke(main, [command]),
    ):
        assert answer.exit_code == 2
        assert all(version in answer.output for version in VERSIONS)


def test_nodes_with_a_kubelet_are_of_the_default_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "check", lambda: None)
    with pytest.raises(ValueError, match=f"only nodes of Kubernetes {re.escape(DEFAULT)} can have a kubelet"):
        KubeletCluster(options=Options(kubernetes=OTHERS[0]))
    answer = CliRunner().invoke(main, ["up", "--nodes=kubelet", f"--kubernetes={OTHERS[0]}"])
    assert answer.exit_code == 1
    assert f"{OTHERS[0]} was chosen" in answer.output


def test_a_build_that_compiles_nothing_any_more_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_STUCK_SECONDS", 0.0)
    monkeypatch.setattr(build, "_PROGRESS_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="compiled nothing for 0 s"):
        build.run_with_progress(["sleep", "600"], dict(os.environ), time.monotonic(), tmp_path)
