"""What Python's ``site`` runs at the end of its start, in interpreters that are made beforehand: this folder
is the first of their PYTHONPATH. The rest is in ``elasticjob/warm/boot`` (docs/internals/warm-workers.md)."""

import importlib
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
_boot = os.path.join(os.path.dirname(_folder), "boot")
_name = "elasticjob_warm_boot"  # not by its own name: that would import elasticjob
try:
    _package = sys.modules[_name] = type(sys)(_name)
    _package.__path__ = [_boot]
    _run = importlib.import_module(f"{_name}.start").run
    for _module in [one for one in sys.modules if one.startswith(_name)]:
        del sys.modules[_module]
    sys.path_importer_cache.pop(_boot, None)
except BaseException:
    if "ELASTICJOB_WARM" in os.environ:
        os._exit(70)  # else the script would run now, before there is a worker to be
    raise
_found = _run(_folder)
if _found is None:
    # As if there was no such file: site lets this one pass, and no module of this name stays.
    raise ImportError("no sitecustomize", name="sitecustomize")
sys.modules["sitecustomize"] = _found
