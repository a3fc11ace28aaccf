"""torch's backends `etcd-v2` and `etcd`, against a real etcd.

Both speak etcd's v2 API by the package python-etcd, which was last released in 2017. etcd 3.6 has no v2 API
any more, and 3.5 serves it with `--enable-v2`; so the server is an etcd of its own, built from its Go module.
Server and package are made on first use, in devcluster's cache folder, and are no part of the project.
`etcd-v2` is c10d's algorithm with the state in etcd; `etcd` is the older one. Both hand torch an EtcdStore.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.backends import Seat, TorchSession
from devcluster.paths import cache_dir
from devcluster.ports import PortClaims, listens
from devcluster.wait import wait_for

ETCD_VERSION = "v3.5.21"
PYTHON_ETCD = "python-etcd==0.4.5"
NAMES = ("etcd-v2", "etcd")
_BUILD_SECONDS = 600.0
_START_SECONDS = 30.0
_HOST = "127.0.0.1"
_GO_MOD = f"module etcd35\n\ngo 1.23\n\nrequire go.etcd.io/etcd/server/v3 {ETCD_VERSION}\n"
_MAIN_GO = """\
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


class EtcdUnavailable(Exception):
    """There is no etcd to measure against; the text says why."""


def python_path() -> Path:
    """A folder to import python-etcd from. Installs it on first use. Raises EtcdUnavailable."""
    target = cache_dir() / PYTHON_ETCD.replace("==", "-")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            # Without its dependencies: urllib3 is here, in one version for all.
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", f"{scratch}/out"]
            _run([sys.executable, "-m", "pip", "install", *options, PYTHON_ETCD, "dnspython"], Path(scratch))
            Path(scratch, "out").rename(target)
    return target


def server_binary() -> Path:
    """The etcd server. Builds it on first use (a minute on 2 cores). Raises EtcdUnavailable."""
    target = cache_dir() / f"etcd-{ETCD_VERSION}"
    if not (target / "etcd").exists():
        if shutil.which("go") is None:
            raise EtcdUnavailable(f"etcd {ETCD_VERSION} is built from its Go module, and no `go` is on PATH")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch, "out")
            made.mkdir()
            Path(scratch, "go.mod").write_text(_GO_MOD)
            Path(scratch, "main.go").write_text(_MAIN_GO)
            _run(["go", "mod", "tidy"], Path(scratch))
            _run(
                ["go", "build", "-trimpath", "-buildvcs=false", "-o", str(made / "etcd"), "."], Path(scratch)
            )
            made.rename(target)
    return target / "etcd"


@contextlib.contextmanager
def server() -> Iterator[str]:
    """An etcd that serves the v2 API; its `host:port`."""
    binary = server_binary()
    ports = PortClaims()
    port, peer = ports.take(), ports.take()
    try:
        with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(binary),
                    "--name=bench",
                    "--enable-v2",
                    f"--data-dir={folder}/data",
                    f"--listen-client-urls=http://{_HOST}:{port}",
                    f"--advertise-client-urls=http://{_HOST}:{port}",
                    f"--listen-peer-urls=http://{_HOST}:{peer}",
                    f"--initial-advertise-peer-urls=http://{_HOST}:{peer}",
                    f"--initial-cluster=bench=http://{_HOST}:{peer}",
                    "--unsafe-no-fsync",  # as devcluster's: what is measured is not the disk
                    "--log-level=error",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                wait_for(lambda: listens(process.pid, port), _START_SECONDS, "etcd listens")
                yield f"{_HOST}:{port}"
            finally:
                process.kill()
                process.wait()
    finally:
        ports.release()


class EtcdSession(TorchSession):
    """One run id in one etcd."""

    def __init__(self, backend: str, endpoint: str, n: int, minimum: int) -> None:
        super().__init__(n, minimum)
        self._backend = backend
        self._endpoint = endpoint

    def seat(self, index: int) -> Seat:
        """The seat of each participant: all are equal."""
        del index
        return Seat(
            backend=self._backend,
            endpoint=self._endpoint,
            run_id=self._run_id,
            min_nodes=self._minimum,
            max_nodes=self._n,
            local_addr=_HOST,
        )


class Etcd:
    """One of the two backends on the etcd at `endpoint`."""

    variant = ""

    def __init__(self, name: str, endpoint: str) -> None:
        self.name = name
        self._endpoint = endpoint

    @contextlib.contextmanager
    def session(self, n: int, minimum: int, extra: int = 0) -> Iterator[EtcdSession]:
        """A new run id."""
        del extra
        yield EtcdSession(self.name, self._endpoint, n, minimum)


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise EtcdUnavailable(f"`{' '.join(command[:3])}` failed: {done.stderr.strip()[-500:]}")
