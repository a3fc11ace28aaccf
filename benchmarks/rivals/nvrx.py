"""NVRx's ft_launcher: torchrun with health checks of its own, over a c10d store in pod 0."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from benchmarks.rivals.environments import environment_of
from benchmarks.rivals.systems import Launch
from benchmarks.rivals.torch_c10d import FLAGS, Session
from benchmarks.rivals.training import Training

FT_FLAGS = ("--ignore-missing-fault-tol-cfg", "--ft-restart-policy=any-failed")
PYTHON = "3.12"


class NvrxSession(Session):
    """As c10d's, with another launcher."""

    def launch(self, pod: int) -> Launch:
        """An ft_launcher takes torchrun's arguments."""
        launch = super().launch(pod)
        program, *arguments = launch.command
        return Launch([program, *FT_FLAGS, *arguments], launch.environment)


class Nvrx:
    """In the version of its requirements."""

    def __init__(self, requirements: str, version: str) -> None:
        self._requirements = requirements
        self.name = f"NVRx {version}"
        self.version = f"nvidia-resiliency-ext {version}, torch 2.15.0"
        self.flags = f"{' '.join(FT_FLAGS)}, {FLAGS}, --max-restarts=1000000"

    def prepare(self) -> None:
        """Its wheels are for Python 3.12 and a glibc that is not on each machine."""
        self._bin = environment_of(self._requirements, PYTHON)

    @contextlib.contextmanager
    def session(self, training: Training, pods: int, minimum: int) -> Iterator[Session]:
        """A new run id."""
        del training
        yield NvrxSession(self._bin / "ft_launcher", pods, minimum, "")
