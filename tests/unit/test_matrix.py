"""What `make matrix-kubernetes` reads from pytest's report."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from devcluster.build import default_kubernetes, kubernetes_versions
from tests.matrix.environments import FOR_TESTS, ROOT
from tests.matrix.kubernetes import Result, main, print_table, read

INSTALL, SPEC = "tests/chart/test_install.py", "tests/integration/crd/test_spec.py"
REPORT = """\
<testsuites><testsuite>
<testcase classname="tests.chart.test_install" name="test_a[one]" time="1" />
<testcase classname="tests.chart.test_install" name="test_b"><skipped message="needs root" /></testcase>
<testcase classname="tests.integration.crd.test_spec" name="test_c"><failure message="no" /></testcase>
<testcase classname="tests.integration.crd.test_spec" name="test_d"><error message="setup" /></testcase>
<testcase classname="tests.integration.crd.test_spec" name="test_d" />
</testsuite></testsuites>
"""


def test_a_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert read(report) == [
        Result(INSTALL, "test_a[one]", "passed"),
        Result(INSTALL, "test_b", "skipped", "needs root"),
        Result(SPEC, "test_c", "failed"),
        Result(SPEC, "test_d", "failed"),
    ]


def test_the_table_says_what_was_skipped_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    print_table({"v1.30.1": [Result(INSTALL, "test_b", "skipped", "needs root")], "v1.31.1": []})
    head, file, whole, skipped = capsys.readouterr().out.strip().splitlines()
    assert head.split() == ["Kubernetes", "v1.30.1", "v1.31.1"]
    assert file.split() == [INSTALL, "1", "skipped", "not", "run"]
    assert whole.split() == ["all", "1", "skipped", "not", "run"]
    assert skipped == f"v1.30.1 skipped {INSTALL}::test_b: needs root"


def test_a_version_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["1.2"])
    assert "no version 1.2; there are " in capsys.readouterr().err


def test_what_is_promised_is_what_is_run() -> None:
    oldest = kubernetes_versions()[0]
    assert f'kubeVersion: ">={oldest}.0-0"' in (ROOT / "charts/elasticjob/Chart.yaml").read_text()
    for page in ("README.md", "docs/operate/install.md", "charts/elasticjob/README.md"):
        assert f"Kubernetes {oldest} or later" in (ROOT / page).read_text(), page
    compatibility = (ROOT / "docs/reference/compatibility.md").read_text()
    assert f"the fields that a pod has in Kubernetes {default_kubernetes()}." in compatibility


def test_each_environment_has_the_plugins_that_pytests_options_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {one for one in project["optional-dependencies"]["dev"] if one.startswith("pytest")}
    assert wanted
    assert wanted <= set(FOR_TESTS)
