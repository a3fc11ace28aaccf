"""What the rules of one pass found out about a job, beside what they wrote into its status."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Waiting:
    """Why the next round does not begin yet."""

    why: str = ""
    count: str = ""
    """How many have joined and how many are needed, where they are too few."""
    reason: str = ""
    """The reason of the condition Training; "" where it depends on the pods alone."""
    none_starting: bool = False
    """Too few have joined, and no pod is on its way."""

    @property
    def sentence(self) -> str:
        """The reason in words, then the count."""
        return f"{self.why}; {self.count}" if self.count else self.why


@dataclass(frozen=True)
class Outlook:
    """What a job waits for."""

    waiting: Waiting = Waiting()
    change: str = ""
    """Why a running round is not of the size that is wanted, in words."""
    replacing: bool = False
    """Pods are being deleted, and the running round goes on until their next ones have joined."""
    over: str = ""
    """Why the job has ended in this pass: the reason of the condition Complete or Failed."""
