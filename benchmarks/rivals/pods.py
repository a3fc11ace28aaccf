"""The kubelet's part, the same for all systems: agents as processes, killed as a container is, and started
again.

An agent that was killed, or that has ended with an error, is started again after RESTART_SECONDS, as often
as it takes: without Kubernetes' longer and longer pauses, in favour of systems whose agents end by
themselves. One that has ended with 0 stays so. The end of a container ends all of its processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.rivals.coordinator import started
from benchmarks.rivals.environments import without_paths
from benchmarks.rivals.judging import Stamp, read
from benchmarks.rivals.systems import Session
from benchmarks.rivals.training import FOLDER_ENV, POD_ENV, Training

RESTART_SECONDS = 2.0
GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL, for the pod that is removed."""
_SAID_BYTES = 20_000


class Pods:
    """All pods of one session. Leaving the context kills what is left."""

    def __init__(self, session: Session, training: Training) -> None:
        self._session = session
        self._training = training
        self._folder = Path(training.folder)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._due: dict[int, float] = {}
        self._removed: dict[int, float] = {}
        self._codes: dict[int, int] = {}
        self.starts = 0

    def __enter__(self) -> Pods:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
        for one in self._of(None):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        for process in self._running.values():
            process.wait()

    def start(self, pod: int) -> None:
        """Start its agent."""
        launch = self._session.launch(pod)
        environment = {**self._training.environment(pod), **launch.environment}
        self._running[pod] = started(launch.command, self._folder / f"{pod}.log", environment)
        self.starts += 1

    def tick(self) -> None:
        """Notice what has ended, and start what is due."""
        now = time.monotonic()
        for pod, process in list(self._running.items()):
            if self._removed.get(pod, now) < now:
                process.kill()
            if process.poll() is not None:
                self._end_container(pod)
                self._ended(pod, process.returncode)
        for pod, due in list(self._due.items()):
            if due <= now:
                del self._due[pod]
                self.start(pod)

    def kill(self, pod: int) -> None:
        """SIGKILL to all processes of a pod's container at once, if it runs."""
        if pod in self._running:
            self._ended(pod, self._end_container(pod))

    def kill_worker(self, pid: int) -> None:
        """SIGKILL to one worker, if it runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def remove(self, pod: int) -> None:
        """SIGTERM to its agent; it is not started again."""
        self._removed[pod] = time.monotonic() + GRACE_SECONDS
        self._due.pop(pod, None)
        if pod in self._running:
            self._running[pod].terminate()

    def all_succeeded(self) -> bool:
        """Whether no agent runs or will, and all but the removed one have ended with 0."""
        return not self._running and not self._due and not any(self._codes.values())

    def said(self) -> str:
        """The last line of an agent's log that names an error, for a run that has come to nothing."""
        found = [
            line.strip()
            for path in sorted(self._folder.glob("*.log"))
            for line in path.read_bytes()[-_SAID_BYTES:].decode(errors="replace").splitlines()
            if "Error" in line
        ]
        return without_paths(found[-1])[-200:] if found else ""

    def _ended(self, pod: int, code: int) -> None:
        self._running.pop(pod, None)
        self._session.ended(pod, code)
        if pod in self._removed:
            return
        self._codes[pod] = code
        if code != 0:
            self._due[pod] = time.monotonic() + RESTART_SECONDS

    def _end_container(self, pod: int) -> int:
        process = self._running.pop(pod)
        process.kill()
        for one in self._of(pod):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        return process.wait()

    def _of(self, pod: int | None) -> Iterator[psutil.Process]:
        """All processes of its container, or of all containers, also those without a parent."""
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                found = one.environ()
                if found.get(FOLDER_ENV) == self._training.folder and pod in (None, int(found[POD_ENV])):
                    yield one


class StampReader:
    """Reads what all workers have stamped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, tuple[int, list[Stamp]]] = {}

    def stamps(self) -> list[Stamp]:
        """All so far. A file is read again only when it has grown."""
        for path in self._folder.glob("*.steps"):
            size = path.stat().st_size
            if self._files.get(path, (0, []))[0] != size:
                pod, pid, _ = path.name.split(".")
                self._files[path] = (size, read(int(pod), int(pid), path.read_text()))
        return [stamp for _, stamps in self._files.values() for stamp in stamps]
