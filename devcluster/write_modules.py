"""Write the module file of one version of Kubernetes, from which `devcluster.build` builds its control plane.

Every module gets the version that this Kubernetes was released with.

Usage: python devcluster/write_modules.py v1.30.14
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from devcluster.build import SOURCE_DIR, find_go, go_environment, module_file

KUBERNETES = "k8s.io/kubernetes"
OF_ITS_OWN_VERSION = ("github.com/spf13/cobra", "go.etcd.io/etcd/server/v3")
"""What main.go imports, in the versions that Kubernetes requires."""
STAGED = ("k8s.io/component-base", "k8s.io/kubectl")
"""What main.go imports of Kubernetes' staging folder."""


def main(version: str) -> None:
    """Write the file and its sums."""
    file = module_file(".".join(version.removeprefix("v").split(".")[:2]))
    downloaded = _json(["mod", "download", "-json", f"{KUBERNETES}@{version}"], SOURCE_DIR)
    written = modules(version, _json(["mod", "edit", "-json", downloaded["GoMod"]], SOURCE_DIR))
    # Without the folder `node`: not every version of what that needs can be downloaded.
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copy(SOURCE_DIR / "main.go", folder)
        (folder / "go.mod").write_text(written)
        subprocess.run([find_go(), "mod", "tidy"], cwd=folder, env=go_environment(), check=True)
        shutil.copy(folder / "go.mod", file)
        shutil.copy(folder / "go.sum", file.with_suffix(".sum"))


def modules(version: str, kubernetes: dict[str, Any]) -> str:
    """The module file without what is indirect; from `go mod edit -json` of that of Kubernetes."""
    staging = version.replace("v1.", "v0.", 1)
    required = {one["Path"]: one["Version"] for one in kubernetes["Require"]}
    direct = {name: required[name] for name in OF_ITS_OWN_VERSION}
    direct |= dict.fromkeys(STAGED, staging) | {KUBERNETES: version}
    staged = [one["Old"]["Path"] for one in kubernetes["Replace"] if one["New"]["Path"].startswith("./")]
    lines = [
        "module elasticjob.dev/devcluster",
        "",
        f"go {kubernetes['Go']}",
        "",
        "require (",
        *(f"\t{name} {wanted}" for name, wanted in sorted(direct.items())),
        ")",
        "",
        "// k8s.io/kubernetes keeps these modules in its staging folder and replaces them",
        "// by paths; a module outside its repository needs their published versions.",
        "replace (",
        *(f"\t{name} => {name} {staging}" for name in sorted(staged)),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _json(arguments: list[str], folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [find_go(), *arguments],
        cwd=folder,
        env=go_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    main(*sys.argv[1:])
