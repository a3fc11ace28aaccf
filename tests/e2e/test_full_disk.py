"""Checkpoints on a real disk that is too small."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ["unshare", "--mount", "--map-root-user"]


def test_a_kill_in_a_save_and_a_full_disk_stop_no_job(tmp_path: Path) -> None:
    """36 MB, and checkpoints of 10 MB of which two remain."""
    if (
        not shutil.which("unshare")
        or subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs unshare (util-linux) and the right to make a mount namespace")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=36m tmpfs "{disk}" && exec "$@"'
    command = [sys.executable, "-m", "tests.e2e.full_disk", str(disk / "run")]
    ended = subprocess.run(
        [*UNSHARE, "sh", "-c", script, "sh", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["resumed"] == [0, 3, 5, 5, 7]
    assert "No space left on device" in found["full"]
    assert "0.0 MB of 37.7 MB are free. Checkpoints in" in found["full"]
    assert "2 complete, of this job (20.0 MB)" in found["full"]
    assert [name[17:] for name in found["left"] if name.startswith("checkpoint")] == [
        "r000006-s00000006",
        "r000006-s00000007",
    ]
