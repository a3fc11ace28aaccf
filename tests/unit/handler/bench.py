"""Starts a script cold and warm, and says how each worker has ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devcluster.wait import wait_for
from elasticjob.warm.eligibility import Start
from elasticjob.warm.interpreter import WarmInterpreter

EARLY = "early"
SECONDS = 240.0


@dataclass
class End:
    """How a worker has ended, and what it has said."""

    code: int
    out: str
    err: str
    error_file: Any
    report: Any
    state: tuple[bytes, str] = field(default=(b"", ""), compare=False)


@dataclass
class Bench:
    """Starts workers cold and warm, in a folder of their own."""

    folder: Path
    before_the_worker: Callable[[], object] = bool
    wait_until_ready: bool = True
    pipes: bool = False
    imports: tuple[str, ...] = (EARLY,)
    env: dict[str, str] = field(default_factory=dict)
    of_the_round: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "site").mkdir()
        (self.folder / "work").mkdir()
        self.early("VALUE = 1\n")
        (self.folder / "site" / "local_module.py").write_text("VALUE = 'local'\n")

    def early(self, text: str, name: str = EARLY) -> Path:
        """Write a module that is imported beforehand."""
        path = self.folder / "site" / f"{name}.py"
        path.write_text(text)
        return path

    def script(self, text: str, name: str = "script.py") -> str:
        """Write a script."""
        (self.folder / "work" / name).write_text(text)
        return name

    def start(self, args: tuple[str, ...], of_round: bool = True) -> Start:
        base = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": str(self.folder / "site"),
            "PARENT": str(os.getpid()),
            "REPORT": str(self.folder / "report.json"),
            "OMP_NUM_THREADS": "1",
            **self.env,
        }
        ours = {
            "RANK": "3",
            "LOCAL_RANK": "0",
            "TORCHELASTIC_ERROR_FILE": str(self.folder / "error.json"),
            **self.of_the_round,
        }
        return Start(
            (sys.executable, "-u", *args), {**base, **(ours if of_round else {})}, str(self.folder / "work")
        )

    def warm_interpreter(self, *args: str) -> WarmInterpreter:
        made = WarmInterpreter(self.start(args, of_round=False), self.imports)
        if self.wait_until_ready:
            wait_for(
                lambda: not made.importing() or made.process.poll() is not None or None,
                SECONDS,
                "the imports are done",
            )
        return made

    def run(self, warm: bool, *args: str) -> End:
        for name in ("report.json", "error.json"):
            (self.folder / name).unlink(missing_ok=True)
        wanted = self.start(args)
        with ExitStack() as files:
            out, err = self._output(files, "out"), self._output(files, "err")
            if warm:
                one = self.warm_interpreter(*args)
                self.before_the_worker()
                process = one.become(wanted, out[1], err[1])
            else:
                self.before_the_worker()
                process = subprocess.Popen(
                    wanted.args,
                    env=wanted.env,
                    cwd=wanted.cwd,
                    stdout=out[1],
                    stderr=err[1],
                    start_new_session=True,
                )
            try:
                code = process.wait(SECONDS)
            finally:
                process.kill()
                process.wait()
            said_out, said_err = self._read(out[0]), self._read(err[0])
        report = self._json("report.json")
        error = self._json("error.json")
        return End(
            code,
            said_out,
            said_err,
            error and error["message"]["message"],
            report,
            one.state() if warm else (b"", ""),
        )

    def _output(self, files: ExitStack, name: str) -> tuple[int, int]:
        """Where to read what is written, and where to write: a file or a pipe, which a stream can tell."""
        if self.pipes:
            both = os.pipe()
        else:
            path = self.folder / name
            written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            both = os.open(path, os.O_RDONLY), written
        for one in both:
            files.callback(os.close, one)
        return both

    @staticmethod
    def _read(descriptor: int) -> str:
        there = select.select([descriptor], [], [], 0)[0]
        return os.read(descriptor, 1 << 20).decode() if there else ""

    def both(self, *args: str) -> tuple[End, End]:
        """A cold start and a warm one."""
        return self.run(False, *args), self.run(True, *args)

    def _json(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None
