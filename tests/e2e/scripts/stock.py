"""One all_reduce, and what each rank finds on its import path. Usage: stock.py FOLDER"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import urllib3

import elasticjob
from elasticjob.api import http

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
elasticjob.report_progress(1)
Path(sys.argv[1], f"rank-{dist.get_rank()}.json").write_text(
    json.dumps(
        {
            "sum": total.item(),
            "python": "{}.{}".format(*sys.version_info),
            "torch": str(torch.__version__),
            "elasticjob": elasticjob.__file__,
            "urllib3": [importlib.metadata.version("urllib3"), urllib3.__file__],
            "the handler's urllib3": http.urllib3.__file__,
            "PYTHONPATH": os.environ["PYTHONPATH"],
        }
    )
)
dist.destroy_process_group()
