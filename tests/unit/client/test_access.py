"""Which cluster is meant: kubeconfigs as kubectl reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube.core.exceptions import ConfigError

from elasticjob_client.access import configuration
from tests.unit.client.server import kubeconfig


def write(path: Path, body: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(body))
    return path


def test_several_files_are_merged_and_the_first_mention_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(tmp_path / "first", kubeconfig("https://one", "one"))
    other = kubeconfig("https://two", "two")
    other["clusters"].append({"name": "one", "cluster": {"server": "https://wrong"}})
    second = write(tmp_path / "second", other)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(first), str(tmp_path / "none"), str(second)]))
    assert configuration().cluster.server == "https://one"
    assert configuration(context="two").cluster.server == "https://two"
    assert configuration().namespace == "research"


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"there is no kubeconfig: expected .*none"):
        configuration()
    with pytest.raises(ConfigError, match="there is no file /nowhere"):
        configuration("/nowhere")
    file = str(write(tmp_path / "config", kubeconfig("https://one", "one")))
    with pytest.raises(ConfigError, match="there is no context 'two' in the kubeconfig: it has one"):
        configuration(file, "two")
    broken = kubeconfig("https://one", "one")
    broken["users"] = []
    with pytest.raises(
        ConfigError, match="context 'one' names the user 'one', which the kubeconfig does not"
    ):
        configuration(str(write(tmp_path / "broken", broken)))
    (tmp_path / "text").write_text("just a text")
    with pytest.raises(ConfigError, match="is not a kubeconfig"):
        configuration(str(tmp_path / "text"))


def test_paths_are_those_beside_the_file(tmp_path: Path) -> None:
    key = tmp_path / "elsewhere" / "me.key"
    key.parent.mkdir()
    for file in (key, tmp_path / "me.crt"):
        file.touch()
    body = kubeconfig("https://one", "one", **{"client-certificate": "me.crt", "client-key": str(key)})
    found = configuration(str(write(tmp_path / "config", body)))
    assert found.user is not None
    assert (found.user.client_cert, found.user.client_key) == (str(tmp_path / "me.crt"), str(key))


def test_a_plugin_of_v1_is_told_what_is_asked_of_it(tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": "./login", "args": ["token"], "interactiveMode": "Never"}
    found = configuration(str(write(tmp_path / "config", kubeconfig("https://one", "one", exec=plugin))))
    assert found.user is not None
    assert found.user.exec is not None
    assert found.user.exec.command == str(tmp_path / "login")
    assert found.user.exec.env is not None
    (told,) = found.user.exec.env
    assert told.name == "KUBERNETES_EXEC_INFO"
    assert f'"apiVersion": "{version}"' in told.value
