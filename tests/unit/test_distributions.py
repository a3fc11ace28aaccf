"""The packages of this repository: one version, one license, and metadata that leads to what is there."""

from __future__ import annotations

import re
from importlib.metadata import entry_points, requires, version
from pathlib import Path

import pytest
import tomllib

import elasticjob
import elasticjob_operator.__main__
from elasticjob.entry import get_handler

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("handler", "operator", "client", "devcluster")


def test_operator_client_and_handler_have_one_version() -> None:
    client = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    project = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]
    assert project["version"] == client["version"] == elasticjob.__version__
    for package in (client, project):
        assert f"elasticjob=={elasticjob.__version__}" in package["dependencies"]


def test_the_installed_packages_are_the_ones_of_this_repository() -> None:
    assert version("elasticjob") == version("elasticjob-operator") == elasticjob.__version__
    (handler,) = entry_points(group="torchrun.handlers", name="k8s")
    assert handler.load() is get_handler
    (operator,) = entry_points(group="console_scripts", name="elasticjob-operator")
    assert operator.load() is elasticjob_operator.__main__.main


def test_a_training_image_gets_urllib3_and_nothing_else() -> None:
    assert [one for one in requires("elasticjob") or () if "extra ==" not in one] == ["urllib3>=2.0"]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_the_license(package: str) -> None:
    assert (ROOT / package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("package", [*PACKAGES, "charts/elasticjob"])
def test_a_package_index_has_no_other_files_to_link_to(package: str) -> None:
    """Nor has a reader of a packed chart's README (`helm show readme`)."""
    links: list[str] = re.findall(r"\]\(([^)\s]+)\)", (ROOT / package / "README.md").read_text())
    assert [link for link in links if not link.startswith("https://")] == []
