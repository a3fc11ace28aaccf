"""`python -m benchmarks.images`: what each image adds to its base, on a node's disk and on its way there.

From the Dockerfiles' own steps, run in a folder (`tests/dockerfile.py`). What the bases weigh is not in it.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from pathlib import Path

from benchmarks import markdown
from tests import strict_python
from tests.dockerfile import ROOT, Build

_COLUMNS = ["image", "files", "MB", "of which byte code", "MB compressed"]


def main() -> None:
    """Entry point."""
    argparse.ArgumentParser(prog="python -m benchmarks.images", description=__doc__).parse_args()
    rows = []
    for name in ("operator", "handler"):
        with tempfile.TemporaryDirectory() as folder:
            dockerfile = ROOT / "docker" / f"{name}.Dockerfile"
            image = Build(dockerfile, Path(folder, "image"), strict_python.find() or sys.executable)
            rows.append([name, *_figures(image.home, Path(folder, "layer.tar.gz"))])
    print(markdown.table(_COLUMNS, rows))


def _figures(root: Path, layer: Path) -> list[str]:
    files = [path for path in root.rglob("*") if path.is_file()]
    sizes = {path: path.stat().st_size for path in files}
    compiled = sum(size for path, size in sizes.items() if path.suffix == ".pyc")
    with tarfile.open(layer, "w:gz", compresslevel=6) as archive:
        archive.add(root, arcname=".")
    numbers = (sum(sizes.values()), compiled, layer.stat().st_size)
    return [str(len(files)), *(f"{number / 1e6:.1f}" for number in numbers)]


if __name__ == "__main__":
    main()
