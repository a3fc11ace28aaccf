"""The files below .github, and whether they are valid.

    python -m tests.workflows      actionlint, with shellcheck for the scripts, and the schemas of these files

The schemas are those that check-jsonschema carries: nothing is fetched.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from devcluster.go_tool import GoTool

ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
ACTIONS = sorted((GITHUB / "actions").glob("*/action.yaml"))
DEPENDABOT = GITHUB / "dependabot.yml"
BIN = Path(sys.executable).parent
_ACTIONLINT = GoTool("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12")


def load(file: Path) -> dict[str, Any]:
    """A workflow, an action, or what Dependabot does."""
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    return content


def steps(file: Path) -> list[dict[str, Any]]:
    """The steps of all jobs of a workflow, or of an action."""
    content = load(file)
    jobs = content["jobs"].values() if "jobs" in content else [content["runs"]]
    return [step for job in jobs for step in job.get("steps", ())]


def main() -> int:
    """Exit code: 0 if all are valid."""
    schemas = {
        "vendor.github-workflows": WORKFLOWS,
        "vendor.github-actions": ACTIONS,
        "vendor.dependabot": [DEPENDABOT],
    }
    shellcheck = (BIN / "shellcheck").resolve(strict=True)  # actionlint says nothing if it is missing
    commands: list[list[str | Path]] = [
        [_ACTIONLINT.ensure(), "-shellcheck", shellcheck, "-pyflakes", "", *WORKFLOWS]
    ]
    for schema, files in schemas.items():
        commands.append([BIN / "check-jsonschema", "--quiet", "--builtin-schema", schema, *files])
    return max(subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands)


if __name__ == "__main__":
    raise SystemExit(main())
