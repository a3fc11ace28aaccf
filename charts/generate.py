"""Write what is made for the chart and from it: its copy of the resource definition, its dashboard, its
README, and manifests for those without helm.

    python -m charts.generate            # writes all of them
    python -m charts.generate --check    # writes nothing; fails if one of them is not what it would write

helm takes files from the chart's own folder only, and warns of a symbolic link at every use.

`charts/elasticjob/files/dashboard.json` is for Grafana; what it shows is in `charts/dashboard`.

`charts/elasticjob/README.md` has a table of the values, from the comments in `values.yaml`; what stands
outside of the markers is written by hand. `deploy/operator.yaml` is what `helm template` makes with the
default values in the namespace `elasticjob-system`, without what only helm understands, and without the
resource definition, which is `crds/`: so that `kubectl delete -f deploy/operator.yaml` leaves every job.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from charts import dashboard
from devcluster.helm import ensure_helm

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "elasticjob"
README = CHART / "README.md"
DEFINITION = ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"
COPY = CHART / "files" / DEFINITION.name
DASHBOARD = CHART / "files" / "dashboard.json"
MANIFESTS = ROOT / "deploy" / "operator.yaml"
NAMESPACE = "elasticjob-system"
BEGIN = "<!-- Begin of the table that charts/generate.py writes -->"
END = "<!-- End of the table that charts/generate.py writes -->"

_HEAD = f"""\
# The operator with the chart's default values, made by charts/generate.py from charts/elasticjob.
#
#   kubectl apply --server-side -f crds/ -f deploy/operator.yaml
#
# REGISTRY stands for yours: docs/operate/install.md#without-helm. Kubernetes accepts no image of this name.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
_IMAGES = (
    "image.repository=REGISTRY/elasticjob-operator",
    "handler.image.repository=REGISTRY/elasticjob-handler",
)
_OF_HELM = re.compile(r"^\s*(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)
_KEY = re.compile(r"^( *)([A-Za-z]\w*):(.*)$")


@dataclass(frozen=True)
class Value:
    """A documented value of the chart: its dotted name, its default as YAML, and its comment."""

    name: str
    default: str
    text: str


def values(text: str) -> list[Value]:
    """The values that ``values.yaml`` documents, in its order.

    A comment documents the key in the next line. A mapping without a comment has documented keys of its own;
    one with a comment is a value as a whole. Raises ValueError for a key that nothing documents.
    """
    defaults: dict[str, Any] = yaml.safe_load(text)
    found: list[Value] = []
    comment: list[str] = []
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("#"):
            comment.append(bare.removeprefix("#").strip())
            continue
        key = _KEY.match(line)
        if key is None:
            comment = []
            continue
        indent, name, rest = key.groups()
        depth = len(indent) // 2
        if depth > len(inside):
            continue  # a part of a value that is documented as a whole
        inside = [*inside[:depth], name]
        if not comment and not rest.strip():
            continue
        if not comment:
            raise ValueError(f"values.yaml, line {number}: {name} has no comment")
        default: Any = defaults
        for part in inside:
            default = default[part]
        found.append(Value(".".join(inside), json.dumps(default), " ".join(comment)))
        comment = []
        inside.pop()
    return found


def table(documented: list[Value]) -> str:
    """The values as a table in Markdown."""
    rows = ["| value | default | what it is |", "|---|---|---|"]
    for value in documented:
        default, text = (cell.replace("|", "\\|") for cell in (value.default, value.text))
        rows.append(f"| `{value.name}` | `{default}` | {text} |")
    return "\n".join(rows)


def readme(current: str) -> str:
    """``current`` with the table of now between its markers. Raises ValueError if they are not there."""
    before, begin, rest = current.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{README.relative_to(ROOT)} does not have the lines {BEGIN!r} and {END!r}")
    return f"{before}{begin}\n{table(values((CHART / 'values.yaml').read_text()))}\n{end}{after}"


def manifests() -> str:
    """What `deploy/operator.yaml` should contain."""
    command = [str(ensure_helm()), "template", "elasticjob", str(CHART), "--namespace", NAMESPACE]
    made = subprocess.run(
        [*command, "--skip-tests", "--set", ",".join(("crds.install=false", *_IMAGES))],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return _HEAD + _OF_HELM.sub("", made.stdout).rstrip() + "\n"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    made: dict[Path, Callable[[], str]] = {
        COPY: DEFINITION.read_text,
        DASHBOARD: dashboard.file,
        README: lambda: readme(README.read_text()),
        MANIFESTS: manifests,
    }
    for file, make in made.items():  # one after the other: helm reads the copy
        text = make()
        if check and (not file.exists() or file.read_text() != text):
            sys.exit(f"{file.relative_to(ROOT)} is not what charts/generate.py makes of the chart: run it")
        if not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)


if __name__ == "__main__":
    main()
