"""What can be said of nodes with a kubelet without making one."""

from __future__ import annotations

import ipaddress
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from devcluster.cli import main
from devcluster.kubelet import cgroups, config, requirements

PLAN = config.Plan(
    name="node-a",
    folder=Path("/state/node-a"),
    address="10.200.0.2",
    pods="10.200.2.0/24",
    cluster="10.200.0.0/16",
    registry="10.200.0.1:5000",
    cni_folder=Path("/usr/lib/cni"),
    ca_file=Path("/state/ca.crt"),
)
VERSION_1 = """\
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
"""


def test_control_groups_are_found_where_they_are_mounted() -> None:
    found = cgroups.hierarchies(VERSION_1)
    assert [(one.kind, one.folder.name, one.options) for one in found] == [
        ("cgroup", "cpu,cpuacct", "cpu,cpuacct"),
        ("cgroup", "systemd", "name=systemd"),
        ("cgroup2", "unified", ""),
    ]
    assert found[0].controllers == {"cpu", "cpuacct"}


def test_the_kubelet_is_told_what_the_plan_says(tmp_path: Path) -> None:
    plan = config.Plan(**{**vars(PLAN), "folder": tmp_path})
    config.write(plan, {"evictionHard": {"nodefs.available": "99%"}})
    told = yaml.safe_load((tmp_path / "kubelet.yaml").read_text())
    assert told["address"] == plan.address
    assert told["evictionHard"] == {"nodefs.available": "99%"}, "what a test sets comes first"
    hosts = (tmp_path / "registries" / "docker.io" / "hosts.toml").read_text()
    assert "http://10.200.0.1:5000" in hosts, "what is on Docker Hub is asked of the cluster's registry"
    assert "docker.io" not in hosts, "and nowhere else"


def test_pods_of_a_node_are_in_the_cluster() -> None:
    pool = config.network(PLAN)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"]
    assert ipaddress.IPv4Network(pool).subnet_of(ipaddress.IPv4Network(PLAN.cluster))


def test_what_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cgroups, "unusable", lambda: "")
    monkeypatch.setattr(requirements, "_find", lambda program: None if program == "runc" else program)
    with pytest.raises(requirements.MissingError, match="--no-install-recommends runc "):
        requirements.check()


def test_whoever_is_not_root_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(requirements.MissingError, match="need root"):
        requirements.check()


def test_nothing_is_installed_for_nodes_that_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, before apt-get has run."""

    def run(*_: object, **__: object) -> None:
        raise AssertionError("apt-get is not started")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(requirements, "_find", lambda _: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    answer = CliRunner().invoke(main, ["packages", "--install"])
    assert (answer.exit_code, answer.output.count("\n")) == (1, 1)
    assert answer.output.startswith("Error: nodes with a kubelet need root: ")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cgroups, "unusable", lambda: "none is mounted")
    answer = CliRunner().invoke(main, ["packages", "--install"])
    assert answer.output == "Error: nodes with a kubelet need control groups: none is mounted\n"


def test_without_control_groups_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cgroups, "hierarchies", lambda: cgroups_of(VERSION_1))
    with pytest.raises(requirements.MissingError, match="no hierarchy controls cpuset, memory, pids"):
        requirements.check()


def test_control_groups_that_can_not_be_read_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> list[cgroups.Hierarchy]:
        raise FileNotFoundError(2, "No such file or directory", "/sys/fs/cgroup/cgroup.controllers")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cgroups, "hierarchies", unreadable)
    with pytest.raises(requirements.MissingError, match=r"can't be read .*docker run --privileged"):
        requirements.check()


def cgroups_of(mountinfo: str) -> list[cgroups.Hierarchy]:
    return [
        one
        for one in _HIERARCHIES(mountinfo)
        if one.kind == "cgroup"  # the other one's controllers are read from a file
    ]


_HIERARCHIES = cgroups.hierarchies


@pytest.mark.parametrize("nodes", ["kubelets", "-1", "kubelet:", "kubelet:two", "other:2"])
def test_nodes_are_a_number_or_kubelets(nodes: str) -> None:
    answer = CliRunner().invoke(main, ["up", f"--nodes={nodes}"])
    assert answer.exit_code == 2
    assert "neither a number nor kubelet" in answer.output


def test_a_cluster_of_kubelets_has_one_at_least() -> None:
    answer = CliRunner().invoke(main, ["up", "--nodes=kubelet:0"])
    assert answer.exit_code == 2
    assert "kubelet:0 is no node: give a number from 1" in answer.output
