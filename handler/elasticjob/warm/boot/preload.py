"""Imports the modules beforehand, and hides them until the script imports them: if it changes the environment
before, a cold start would see that. Checks that a cold start would still import the same."""

from __future__ import annotations

import builtins
import importlib
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

from .hand_over import HandOver, SideEffects
from .page import CannotImport, Page, Request, Unusable
from .process import PROCESS_NAME, command, read, write

DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/pts/",
    "/dev/shm/",
)
"""What a process may have open below /dev without having opened an accelerator."""


def preload(names: Sequence[str]) -> Preloaded:
    """Import the modules with these names. Raises Unusable."""
    before, name_before, path_before = set(sys.modules), read(PROCESS_NAME), list(sys.path)
    folder = _script_folder(command())
    if folder is not None:
        sys.path.insert(0, folder)
    added = AddedFolders()
    needs: dict[str, set[str]] = {}
    """Top-level package -> those that it has imported, by import statements or by the first import of it."""
    real = builtins.__import__

    def recording(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 0 and globals is not None:
            by = str(globals.get("__name__", "")).partition(".")[0]
            needs.setdefault(by, set()).add(name.partition(".")[0])
        return real(name, globals, locals, fromlist, level)

    builtins.__import__ = recording
    try:
        for name in names:
            known = set(sys.modules)
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:
                raise CannotImport(name, f"{type(error).__name__}: {error}") from error
            new = {one.partition(".")[0] for one in set(sys.modules) - known}
            needs.setdefault(name.partition(".")[0], set()).update(new)
            added.note(name, new)
    finally:
        builtins.__import__ = real
        sys.path[:] = path_before
    device = _open_device()
    if device:
        raise Unusable(f"an import opened {device}")
    return Preloaded(before, needs, added, folder, name_before)


def _script_folder(args: Sequence[str]) -> str | None:
    """What Python puts first into ``sys.path`` for this command, None for nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    return os.getcwd() if args[0] == "-m" else os.path.dirname(os.path.realpath(args[0]))


def _open_device() -> str:
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.startswith("/dev/") and not path.startswith(DEVICES) and int(number) > 2:
            return path
    return ""


class AddedFolders:
    """What the modules have added to ``sys.path``: torch 2.8 adds a temporary folder at its end.

    The script gets the folders of a module when it imports it, or a package that was first imported with it.
    It also gets those of the modules before it in the list: the module may have found these folders, and so
    not added them itself.
    """

    def __init__(self) -> None:
        self._now = list(sys.path)
        self._added: list[tuple[list[str], list[str]]] = []
        """One pair for each module in the list: the folders at the beginning, those at the end."""
        self._places: dict[str, int] = {}
        """Top-level package -> place in that list."""

    def note(self, name: str, new: set[str]) -> None:
        """This module has been imported, and with it these top-level packages. Raises CannotImport for what
        cannot be repeated."""
        before, now = self._now, list(sys.path)
        for start in range(len(now) - len(before) + 1):
            end = start + len(before)
            if now[start:end] == before:
                self._added.append((now[:start], now[end:]))
                break
        else:
            why = "with it, folders are taken out of sys.path, or added between others"
            raise CannotImport(name, why)
        self._now = now
        place = len(self._added) - 1
        for top in new:
            self._places.setdefault(top, place)
        self._places[name.partition(".")[0]] = place

    def add(self, tops: set[str]) -> None:
        """The script imports these packages."""
        last = max((self._places[top] for top in tops if top in self._places), default=-1)
        for place in range(last + 1):
            first, after = self._added[place]
            sys.path[:0] = first
            sys.path.extend(after)
            self._added[place] = ([], [])


class Preloaded:
    """The modules of ``sys.modules`` that are not in ``before``.

    ``needs``: top-level package -> those that it has imported. ``added``: what the imports have added to
    ``sys.path``. ``folder``: the script's, which comes first there. ``name_before``: the name of this process
    before the imports.
    """

    def __init__(
        self,
        before: set[str],
        needs: Mapping[str, set[str]],
        added: AddedFolders,
        folder: str | None,
        name_before: str,
    ) -> None:
        self._added = added
        self._folder = folder
        self._name_before = name_before
        own = [name for name in sys.modules if name not in before]
        tops = {
            name
            for name in own
            if "." not in name
            and name not in sys.stdlib_module_names
            and getattr(sys.modules[name], "__spec__", None) is not None
        }
        self._modules: dict[str, dict[str, ModuleType]] = {top: {} for top in tops}
        for name in own:
            top = name.partition(".")[0]
            if top in tops:
                self._modules[top][name] = sys.modules[name]
        self._needs = {top: self._all_needs(top, needs) for top in tops}
        self._files = dict(_files(list(sys.modules.values())))
        self._tops = {name.partition(".")[0] for name in sys.modules}

    def _all_needs(self, top: str, needs: Mapping[str, set[str]]) -> set[str]:
        found, new = {top}, [top]
        while new:
            for other in needs.get(new.pop(), ()):
                if other in self._modules and other not in found:
                    found.add(other)
                    new.append(other)
        return found

    def check(self) -> None:
        """Raises Unusable if a cold start would import other modules than these."""
        for path, was in self._files.items():
            if _stamp(path) != was:
                raise Unusable(f"{path} has changed")
        args = command()
        if args[0] == "-m" and {args[1], f"{args[1]}.__main__"} & set(sys.modules):
            raise Unusable(f"{args[1]}, which is to run, was imported beforehand")
        importlib.invalidate_caches()
        if self._folder is None:
            return
        try:
            entries = os.listdir(self._folder)
        except OSError as error:
            raise Unusable(str(error)) from error
        for entry in entries:
            top = entry.partition(".")[0]
            if top not in self._tops or top == "__main__" or top in sys.builtin_module_names:
                continue
            path = os.path.join(self._folder, entry)
            known = (
                getattr(self._modules.get(top, {}).get(top) or sys.modules.get(top), "__file__", None) or ""
            )
            importable = entry.endswith((".py", ".so")) or os.path.exists(os.path.join(path, "__init__.py"))
            if importable and known != path and not known.startswith(path + os.sep):
                raise Unusable(
                    f"{path} hides a module of this name that was imported from {known or 'elsewhere'}"
                )

    def hide(self, request: Request, page: Page, output: Sequence[bytes]) -> None:
        """Take them out of ``sys.modules``, and install the finder that hands them over. ``output`` is what
        the imports have written."""
        for modules in self._modules.values():
            for name in modules:
                sys.modules.pop(name, None)
        effects = SideEffects(output, read(PROCESS_NAME))
        write(PROCESS_NAME, self._name_before)
        if self._modules:
            finder = HandOver(self._modules, self._needs, self._added.add, effects, request, page)
            sys.meta_path.insert(0, finder)


def _files(modules: Sequence[object]) -> Iterator[tuple[str, tuple[int, int] | None]]:
    for module in modules:
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path):
            yield path, _stamp(path)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None
