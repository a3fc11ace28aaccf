"""Servers that speak S3: moto, which plays it in memory, and versitygw, which keeps objects as files and is
built from its Go module."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devcluster.go_tool import GoTool
from devcluster.wait import wait_for

KEY, SECRET, REGION = "test", "test-secret", "us-east-1"
_DEADLINE = 60.0
_VERSITYGW = GoTool("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")


@contextmanager
def playing() -> Iterator[str]:
    """moto's address on loopback."""
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        s3_backends.reset()  # all servers of a process share what they hold


def use(monkeypatch: pytest.MonkeyPatch, address: str, **options: object) -> None:
    """Let this process open ``s3://`` there, with further options of s3fs."""
    from fsspec.config import conf

    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    own = {"endpoint_url": address, "key": KEY, "secret": SECRET, "skip_instance_cache": True}
    monkeypatch.setitem(conf, "s3", {**own, **options})


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """versitygw's address on loopback; objects, metadata and the log are in ``folder``."""
    program = _VERSITYGW.ensure()
    for name in ("objects", "metadata"):
        (folder / name).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(program), "--port", f"127.0.0.1:{port}", "--region", REGION, "posix"]
    # Metadata in files beside the objects: not every file system has extended attributes.
    command += ["--sidecar", str(folder / "metadata"), str(folder / "objects")]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(answers, _DEADLINE, "the S3 server listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
