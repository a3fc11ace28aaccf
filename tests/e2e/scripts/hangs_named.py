"""hangs.py in processes whose name the kernel cuts in the middle of a letter, as setproctitle may name them.

Usage: hangs_named.py FOLDER.
"""

import ctypes
import runpy
from pathlib import Path

ctypes.CDLL(None).prctl(15, ("é" * 8).encode(), 0, 0, 0)
runpy.run_path(str(Path(__file__).with_name("hangs.py")), run_name="__main__")
