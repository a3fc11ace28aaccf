"""What all systems train: settings that workers get through their environment."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

WORKERS = Path(__file__).parent / "workers"
TRAIN = WORKERS / "train.py"
TRAIN_TORCHFT = WORKERS / "train_torchft.py"
FOLDER_ENV = "RIVALS_FOLDER"
POD_ENV = "RIVALS_POD"
SETTINGS_ENV = "RIVALS_SETTINGS"


@dataclass(frozen=True)
class Training:
    """``steps`` of at least ``seconds`` each. Each ``every`` steps the state is saved to ``folder``, which
    stands for storage that all pods share. ``folder`` has the logs and stamps, too."""

    folder: str
    steps: int
    seconds: float
    every: int

    def environment(self, pod: int) -> dict[str, str]:
        """With which the agent of a pod is started."""
        settings = json.dumps({**asdict(self), "folder": str(Path(self.folder) / "saves")})
        found = {FOLDER_ENV: self.folder, POD_ENV: str(pod), SETTINGS_ENV: settings}
        return {**found, "PYTHONPATH": str(WORKERS.parents[2])}
