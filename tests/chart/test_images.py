"""The steps of the Dockerfiles, run in a folder of their own: no image can be built here.

What this shows: the locked requirements install by their hashes, what is copied is there, and the result does
its work. What it does not: the base images. Needs the package index, as a build does. The operator is started
as its user by `test_image_starts`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import elasticjob
from elasticjob_operator.act.injection import HANDLER_DIR
from tests.dockerfile import ROOT, Build
from tests.unit.test_injection import injected


@pytest.mark.parametrize("name", ["operator", "handler"])
def test_every_requirement_is_locked_by_hashes(name: str) -> None:
    for kind in (name, "build"):
        text = (ROOT / "docker" / f"{kind}-requirements.txt").read_text()
        packages = re.findall(r"^([A-Za-z0-9._-]+)==([^\\\n]*(?:\\\n[^\\\n]*)*)$", text, re.MULTILINE)
        assert packages
        assert all("--hash=sha256:" in rest for _, rest in packages)
        assert "--index-url" not in text


def test_operator(operator_image: Build) -> None:
    built = operator_image
    assert built.user == "65532:65532"
    assert built.labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    answer = built.run([*built.entrypoint, "--help"])
    assert answer.returncode == 0, answer.stderr
    assert "--health-probe-bind-address" in answer.stdout
    where = built.run(
        [
            "python",
            "-c",
            "import elasticjob_operator.app as a, elasticjob as e; print(a.__file__, e.__file__)",
        ]
    )
    assert all(path.startswith(str(built.home)) for path in where.stdout.split()), where.stdout + where.stderr


def test_handler(handler_image: Build, tmp_path: Path) -> None:
    assert handler_image.user == "65532:65532"
    copied = handler_image.run([*handler_image.entrypoint, str(tmp_path)])
    assert copied.returncode == 0, copied.stderr
    # Nothing that could hide what a training image has under the same name.
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"elasticjob"}
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".so", ".pyc")]
    assert (tmp_path / "elasticjob/_vendor/urllib3/LICENSE.txt").is_file()
    found = (
        "import elasticjob.api.connection as c, sys; print(c.urllib3.__file__, 'urllib3' in sys.modules);"
        "from importlib.metadata import entry_points, requires; print(requires('elasticjob'));"
        "print(*((e.name, e.value) for e in entry_points(group='torchrun.handlers')))"
    )
    answer = handler_image.run(["python", "-c", found], PYTHONPATH=str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        f"{tmp_path}/elasticjob/_vendor/urllib3/__init__.py False",
        "None",
        "('k8s', 'elasticjob.entry:get_handler')",
    ]
    # What a user's `pip freeze` has of it is no path of the image's build.
    frozen = handler_image.run(["python", "-m", "pip", "freeze"], PYTHONPATH=str(tmp_path))
    assert frozen.stdout.split() == [f"elasticjob=={elasticjob.__version__}"], frozen.stderr


def test_the_command_of_the_init_container_is_the_image_s_own(handler_image: Build) -> None:
    (container,) = injected({"containers": [{}]})["initContainers"]
    assert container["command"] == [*handler_image.entrypoint, HANDLER_DIR]
