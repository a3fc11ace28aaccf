"""An environment for each system, made on demand in the user's cache, with the versions of its file in
`requirements/`. It is made again when that file or the Python changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
INSTALL_SECONDS = 900
_LINES = 6


class UnavailableError(Exception):
    """A system cannot be run here. The text says why."""


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/elasticjob-rivals`, or the same below `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "elasticjob-rivals"


def environment_of(name: str, version: str = "3.11") -> Path:
    """The folder with the programs of `requirements/NAME.txt`, under this Python. Raises UnavailableError."""
    file = REQUIREMENTS / f"{name}.txt"
    digest = hashlib.sha256(file.read_bytes() + version.encode()).hexdigest()[:12]
    folder = cache_dir() / f"{name}-{digest}"
    if not (folder / "ready").exists():
        print(f"making the environment of {name} in {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        uv("venv", "--quiet", "--python", str(interpreter(version)), str(folder))
        uv(
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            "--python",
            str(folder / "bin" / "python"),
            "--requirement",
            str(file),
        )
        (folder / "ready").touch()
    return folder / "bin"


def compile_this() -> None:
    """Compile the packages of this environment, as those of the others are: where Python may not write
    bytecode (PYTHONDONTWRITEBYTECODE), each process would compile torch once more, which takes seconds."""
    root = Path(__file__).parents[2]
    folders = [sysconfig.get_path("purelib"), str(root / "handler"), str(root / "operator")]
    command = [sys.executable, "-m", "compileall", "-q", *folders]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def interpreter(version: str) -> Path:
    """A Python of this version: this one, one on the path, or one of pyenv. Raises UnavailableError."""
    candidates = [Path(sys.executable)]
    if found := shutil.which(f"python{version}"):
        candidates.append(Path(found))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        answer = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return candidate
    raise UnavailableError(f"needs Python {version}, which is not on this machine")


def uv(*arguments: str) -> None:
    """Run the uv beside this Python. Raises UnavailableError with its words."""
    settings = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(
        [Path(sys.executable).parent / "uv", *arguments],
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise UnavailableError(without_paths(" ".join(lines[-_LINES:])))


def without_paths(text: str) -> str:
    """The text of an error without folders of this machine, for a table that others read."""
    for folder, short in ((cache_dir(), "CACHE"), (Path(__file__).parents[2], "."), (Path.home(), "~")):
        text = text.replace(str(folder), short)
    return text
