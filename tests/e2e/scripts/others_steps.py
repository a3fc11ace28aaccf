"""steps.py in a pod that the operator did not make: its environment says nothing about the job.

Usage: others_steps.py FOLDER.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

os.environ.setdefault("ELASTICJOB_POD_NAME", os.environ["HOSTNAME"])
runpy.run_path(str(Path(__file__).with_name("steps.py")), run_name="__main__")
