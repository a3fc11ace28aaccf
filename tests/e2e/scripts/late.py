"""Rank 0 ends at once; the others end when the test says stop. Usage: late.py FOLDER."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] != "0":
    while not Path(sys.argv[1], "stop").exists():
        time.sleep(0.1)
