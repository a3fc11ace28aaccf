"""Gives the script what was imported beforehand, at the moment when it imports it."""

from __future__ import annotations

import atexit
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from .page import SCRIPT, Page, Request
from .process import PROCESS_NAME, start_cold, write, write_all

NOT_READ = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_",
    "TORCHELASTIC_",
    "ELASTICJOB_",
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "TOKENIZERS_PARALLELISM",
    "WANDB_",
)
"""Beginnings of variables that ``import torch`` does not read, so that a script may set them before it."""


class SideEffects:
    """What the imports did to the process: what they wrote to output and error output, and the name that they
    gave to the process (torch 2.4 does so, otherwise ""). Repeated once, at the script's first import."""

    def __init__(self, output: Sequence[bytes], process_name: str) -> None:
        self._output, self._process_name = output, process_name

    def repeat(self) -> None:
        """Write the output and set the name, if that has not been done."""
        name, self._process_name = self._process_name, ""
        if name:
            write(PROCESS_NAME, name)
        output, self._output = self._output, ()
        for number, data in enumerate(output, 1):
            write_all(number, data)


class HandOver:
    """A finder that gives the script what was imported beforehand; its own import would give the same."""

    def __init__(
        self,
        modules: Mapping[str, dict[str, ModuleType]],
        needs: Mapping[str, set[str]],
        add_folders: Callable[[set[str]], None],
        effects: SideEffects,
        request: Request,
        page: Page,
    ) -> None:
        self._modules = dict(modules)
        self._needs, self._add_folders, self._effects = needs, add_folders, effects
        self._request, self._page = request, page
        self._env, self._pid = dict(os.environ), os.getpid()
        self._spec: Any = None
        atexit.register(self._put_back)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """A spec like that of the module, which loads it from here; None for all that is not here."""
        del path, target
        module = self._modules.get(name, {}).get(name)
        if module is None or module.__spec__ is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            name,
            self,  # type: ignore[arg-type]
            origin=module.__spec__.origin,
            is_package=module.__spec__.submodule_search_locations is not None,
        )
        spec.submodule_search_locations = module.__spec__.submodule_search_locations
        spec.cached = module.__spec__.cached
        spec.has_location = module.__spec__.has_location
        return spec

    def create_module(self, spec: Any) -> ModuleType:
        """The module; what it has imported itself is put back where Python looks for it."""
        changed = sorted(_changed(self._env, os.environ))
        if changed and os.getpid() == self._pid:
            text = f"the script sets {', '.join(changed)} before it imports {spec.name}"
            start_cold(self._request, self._page, text, SCRIPT)
        module = self._modules[spec.name][spec.name]
        self._spec = module.__spec__
        for top in self._needs[spec.name]:
            for name, one in self._modules.pop(top, {}).items():
                sys.modules.setdefault(name, one)
        self._add_folders(self._needs[spec.name])
        if not self._modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            atexit.unregister(self._put_back)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already; what else its import did to the process is repeated now."""
        module.__spec__ = self._spec
        self._effects.repeat()

    def _put_back(self) -> None:
        """When Python is about to end, put what the script has never imported into ``sys.modules``. Python
        then takes it down in order; otherwise libraries complain of what is left."""
        for modules in self._modules.values():
            for name, one in modules.items():
                sys.modules.setdefault(name, one)


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {*before, *now}:
        if before.get(name) != now.get(name) and not name.startswith(NOT_READ):
            yield name
