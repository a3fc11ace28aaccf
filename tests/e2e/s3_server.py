"""A server that speaks S3 and keeps objects as files: versitygw, built from its Go module."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devcluster.go_tool import GoTool
from devcluster.wait import wait_for

KEY, SECRET, REGION = "test", "test-secret", "us-east-1"
_DEADLINE = 60.0
_VERSITYGW = GoTool("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The server's address on loopback; objects, metadata and the log are in ``folder``."""
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
