"""One warm interpreter, as torchrun sees it. What runs in it is ``elasticjob.warm.boot``."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from elasticjob.warm.boot.page import CONFIG_ENV, IMPORTING, PAGE_BYTES
from elasticjob.warm.eligibility import Start, fixed

FOLDER = str(Path(__file__).with_name("boot_site"))
PROBE_SECONDS = 10.0
STARTING = b"\0"


def works(executable: str, env: Mapping[str, str]) -> bool:
    """Whether this Python runs ``boot`` at its start. If it does not (a wrapper may clear PYTHONPATH), it
    would run the script at once."""
    try:
        done = subprocess.run(
            [executable, "-u", "-c", "raise SystemExit(1)"],
            env=_environment(env, "probe"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


class WarmInterpreter:
    """An interpreter for one ``Start``; torch gets its ``process``. Raises OSError if it can't be made."""

    def __init__(self, start: Start, imports: Sequence[str]) -> None:
        self.start = start
        with ExitStack() as files:
            self._channel, theirs = socket.socketpair()
            files.enter_context(theirs)
            page, out, err = (_memory_file(files, name) for name in ("page", "out", "err"))
            os.ftruncate(page, PAGE_BYTES)
            self._page = mmap.mmap(page, PAGE_BYTES)
            config = {
                "socket": theirs.fileno(),
                "page": page,
                "imports": list(imports),
                "pythonpath": start.env.get("PYTHONPATH"),
            }
            try:
                self.process = subprocess.Popen(
                    start.args,
                    env=_environment(fixed(start.env), json.dumps(config)),
                    cwd=start.cwd,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    pass_fds=[theirs.fileno(), page],
                )
            except BaseException:
                self._channel.close()
                raise

    def state(self) -> tuple[bytes, str]:
        """Its state, one of those in ``boot.page``, and the text to it."""
        data = bytes(self._page[:PAGE_BYTES])
        return data[:1], data[1:].partition(b"\0")[0].decode(errors="replace")

    def importing(self) -> bool:
        """Whether it is still importing."""
        return self.state()[0] in (STARTING, IMPORTING)

    def become(self, wanted: Start, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        """Make it this worker, as soon as its imports are done. Raises OSError if it has ended."""
        with ExitStack() as files:
            request = _memory_file(files, "request")
            values = {"args": wanted.args[1:], "env": dict(wanted.env), "cwd": wanted.cwd}
            os.write(request, json.dumps(values).encode())
            # One byte always fits into the socket: this does not wait for an import.
            socket.send_fds(self._channel, [b"g"], [request, stdout, stderr])
        self._channel.close()
        return self.process

    def end(self) -> None:
        """End the process: it is not needed."""
        self._channel.close()
        self.process.kill()
        self.process.wait()


def _environment(env: Mapping[str, str], config: str) -> dict[str, str]:
    path = os.pathsep.join([FOLDER, *filter(None, [env.get("PYTHONPATH")])])
    return {**env, "PYTHONPATH": path, CONFIG_ENV: config}


def _memory_file(files: ExitStack, name: str) -> int:
    descriptor = os.memfd_create(f"elasticjob-warm-{name}")
    files.callback(os.close, descriptor)
    return descriptor
