"""What Python's ``site`` runs at the end of its start, in interpreters that are made beforehand: this folder
is the first of their PYTHONPATH. Everything is in ``boot.py`` (docs/internals/warm-workers.md)."""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
_path = os.path.join(os.path.dirname(_folder), "boot.py")
_names: "dict[str, object]" = {"__name__": "elasticjob_warm_boot", "__file__": _path}
try:
    with open(_path, "rb") as _file:
        exec(compile(_file.read(), _path, "exec"), _names)
    _run = _names["run"]
except BaseException:
    if "ELASTICJOB_WARM" in os.environ:
        os._exit(70)  # else the script would run now, before there is a worker to be
    raise
_found = _run(_folder)  # type: ignore[operator]
if _found is None:
    # As if there was no such file: site lets this one pass, and no module of this name stays.
    raise ImportError("no sitecustomize", name="sitecustomize")
sys.modules["sitecustomize"] = _found
