"""Runs at the start of each Python that has this folder in PYTHONPATH (docs/internals/warm-workers.md).

In a torchrun with warm workers it calls ``elasticjob.warm.early_start``. In every process it runs the
``sitecustomize`` that would have run without this one."""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
while _folder in sys.path:
    sys.path.remove(_folder)
sys.path_importer_cache.pop(_folder, None)
_mine = sys.modules.pop("sitecustomize")
try:
    import sitecustomize as _found  # type: ignore[import-not-found]  # noqa: F401 - that site finds it

    _missing = None
except ImportError as _error:
    # Without one, site lets this pass, as if there was no such file.
    _missing = _error
finally:
    sys.modules.setdefault("sitecustomize", _mine)
_torchruns = ("torchrun", "torch.distributed.run", "elasticjob.run")
if any(_word.endswith(_torchruns) for _word in sys.orig_argv[1:5]):
    try:
        from elasticjob.warm.early_start import begin

        begin(sys.orig_argv)
    except Exception:  # noqa: BLE001 - torchrun starts anyway
        pass
if _missing is not None:
    raise _missing
