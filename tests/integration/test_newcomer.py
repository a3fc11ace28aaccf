"""The command line of users without rights, against a real API server: what it refuses, and what is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import kubeconfig
from devcluster.cluster import Cluster

pytestmark = [pytest.mark.cluster]

PROGRAM = Path(sys.executable).with_name("elasticjob")


@pytest.fixture
def newcomer(installed: Cluster, namespace: str, tmp_path: Path) -> Path:
    """The kubeconfig of a user who has no right but that to log in."""
    installed.kubectl("-n", namespace, "create", "serviceaccount", "newcomer")
    token = installed.kubectl("-n", namespace, "create", "token", "newcomer").stdout.strip()
    return kubeconfig.write(tmp_path / "kubeconfig", installed.server, installed.ca_file, token)


def said(config: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [PROGRAM, *words, f"--kubeconfig={config}"], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_user_without_rights_is_told_which_and_whom_to_ask(newcomer: Path, namespace: str) -> None:
    for words in (
        ("list",),
        ("status", "mnist"),
        ("delete", "mnist", "-y"),
        ("events", "mnist"),
        ("top", "-o", "json"),
    ):
        code, out, err = said(newcomer, *words, "-n", namespace)
        assert (code, out) == (1, ""), words
        assert f"system:serviceaccount:{namespace}:newcomer" in err
        assert "Ask the administrators of the cluster for this right" in err
    code, out, _ = said(newcomer, "doctor", "-n", namespace, "-o", "json")
    results = {check["subject"]: check["result"] for check in json.loads(out)["items"]}
    assert (code, results["jobs"], results["operator"], results["read logs"]) == (
        1,
        "failed",
        "unknown",
        "failed",
    )


def test_a_namespace_or_job_that_is_not_there(installed: Cluster, namespace: str) -> None:
    admin = installed.kubeconfig
    assert said(admin, "list", "-n", namespace) == (0, "", f"no ElasticJobs in namespace {namespace}\n")
    for words in (("list",), ("status", "mnist"), ("run", __file__, "--image=i", "--detach")):
        code, out, err = said(admin, *words, "-n", "no-such-namespace")
        assert (code, out) == (1, ""), words
        assert "no-such-namespace" in err
        assert "`kubectl get namespaces` shows those that there are" in err
    code, _, err = said(admin, "status", "mnist", "-n", namespace)
    assert code == 1
    assert '"mnist" not found' in err
    assert "`elasticjob list -A`" in err


def test_credentials_that_the_server_does_not_accept(installed: Cluster, tmp_path: Path) -> None:
    config = kubeconfig.write(tmp_path / "kubeconfig", installed.server, installed.ca_file, "nonsense")
    code, _, err = said(config, "list")
    assert code == 1
    assert "does not accept the credentials" in err
    assert "Log in again" in err
