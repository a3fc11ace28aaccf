"""A Prometheus that scrapes the operators of a test, and promtool."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from charts.generate import NAMESPACE
from devcluster.prometheus import ensure_prometheus
from devcluster.wait import wait_for

SCRAPE_SECONDS = 1
POD = "elasticjob-7d9f6c-x2x4q"
"""The name that a scraped operator has: one that the chart's Deployment could give it."""
STANDBY = "elasticjob-7d9f6c-q9q9q"
_READY_SECONDS = 120.0
_ANSWER_SECONDS = 60.0


def promtool(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool in a folder; what it says is in ``stdout`` and ``stderr``."""
    return subprocess.run(
        [str(ensure_prometheus() / "promtool"), *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


class Prometheus:
    """One on the loopback, from the start until ``stop``. ``targets`` are ports by the pod's name."""

    def __init__(self, folder: Path, port: int, targets: Mapping[str, int], rules: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True)
        (folder / "alerts.yaml").write_text(yaml.safe_dump(dict(rules)))
        every = f"{SCRAPE_SECONDS}s"
        scraped = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": NAMESPACE, "pod": pod}}
            for pod, port in targets.items()
        ]
        configuration = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [{"job_name": "elasticjob", "static_configs": scraped}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        self._url = f"http://127.0.0.1:{port}"
        self.log = folder / "prometheus.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(ensure_prometheus() / "prometheus"),
                    "--config.file=prometheus.yaml",
                    "--storage.tsdb.path=data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_for(
            self._is_ready, _READY_SECONDS, lambda: f"Prometheus is ready: {self.log.read_text()[-2000:]}"
        )

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=60)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now, each with ``metric`` and ``value``. Raises RuntimeError if it is
        wrong."""
        found: list[dict[str, Any]] = self._ask("query", {"query": expression})["result"]
        return found

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The same over a time: each with ``metric`` and ``values``. Times are seconds since the epoch."""
        asked = {"query": expression, "start": f"{start}", "end": f"{end}", "step": f"{step}"}
        found: list[dict[str, Any]] = self._ask("query_range", asked)["result"]
        return found

    def label_values(self, series: str, label: str) -> list[str]:
        """The values of a label of these series, in their order."""
        found: list[str] = self._ask(f"label/{label}/values", {"match[]": series})
        return found

    def firing(self, alert: str) -> list[dict[str, Any]]:
        """The alerts of that name that fire, with ``labels`` and ``annotations``."""
        return [
            found
            for found in self._ask("alerts", {})["alerts"]
            if found["labels"]["alertname"] == alert and found["state"] == "firing"
        ]

    def _ask(self, what: str, asked: Mapping[str, str]) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{asked}: {error.read().decode()}") from None

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
