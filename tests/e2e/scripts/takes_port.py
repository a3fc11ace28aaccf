"""In round 1 another process listens on MASTER_PORT before global rank 0 does; then runs a script.

Usage: takes_port.py SCRIPT ARGS...
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

if os.environ["RANK"] == "0" and os.environ["ELASTICJOB_ROUND"] == "1":
    taken = socket.create_server(("", int(os.environ["MASTER_PORT"])))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
