"""In an interpreter that is made beforehand: imports torch, waits, and becomes the worker.

It is started with the worker's own command line, and stops where ``site`` imports ``sitecustomize``: before
Python itself sets up ``__main__`` and ``sys.path[0]`` and opens the script. So Python starts the script, as
in a cold start, and nothing of this module is below it on the stack. It imports nothing of this package: it
runs as part of the user's program.

Whatever goes wrong here, and whatever makes a difference to a cold start, ends in ``exec`` of the same
command in the same process: a cold start that torch cannot tell from its own. Waiting ends in an exit code
that is not 0 when torchrun is gone: 0 would be a worker that has done its work.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import importlib
import importlib.machinery
import io
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

CONFIG_ENV = "ELASTICJOB_WARM"
"""JSON: ``socket`` and ``page``, descriptors; ``imports``, names of modules; ``pythonpath``, the worker's
own, or null. ``probe`` instead of all: exit with 0 to show that this module runs at all."""
GONE = 70
"""Exit code when torchrun is gone."""
PAGE_BYTES = 4096
IMPORTING, READY, UNUSABLE, MODULE, WARM, COLD, SCRIPT = b"i", b"r", b"u", b"m", b"w", b"c", b"s"
"""The first byte of the page; a text follows where there is something to say. MODULE: unusable for a module
that cannot be imported; its name, a colon, and why. COLD and SCRIPT: started cold after all, the latter for
what the script does."""
OOM_SCORE = "/proc/self/oom_score_adj"
PROCESS_NAME = "/proc/self/comm"
IDLE_OOM_SCORE = 1000
"""While it waits, the kernel takes it before a worker."""
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


class Unusable(Exception):
    """Why no worker may be made of this process; it becomes a cold start."""


class CannotImport(Unusable):
    """A module that was to be imported beforehand cannot be."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"cannot import {name}: {why}")
        self.text = f"{name}: {why}"


class Page:
    """Where this process says how far it is. Memory shared with torchrun, without a descriptor: the script
    finds none that a cold start has not, and one that is started cold after all can still say so."""

    def __init__(self, descriptor: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            *[ctypes.c_int] * 3,
            ctypes.c_long,
        ]
        read_write, shared = 3, 1
        address = libc.mmap(None, PAGE_BYTES, read_write, shared, descriptor, 0)
        os.close(descriptor)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "cannot map the page")
        self._address: int = address

    def say(self, state: bytes, text: str = "") -> None:
        """The text first: who reads the state finds its text."""
        data = text.encode("utf-8", "replace")[: PAGE_BYTES - 2] + b"\0"
        ctypes.memmove(self._address + 1, data, len(data))
        ctypes.memmove(self._address, state, 1)


def run(folder: str) -> ModuleType | None:
    """The user's own ``sitecustomize``, None if there is none. Returns when this process is to be the worker,
    with all of a cold start set up; does not return if it becomes a cold start, or if torchrun is gone."""
    while folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    text = os.environ.pop(CONFIG_ENV, "")
    if text == "probe":
        os._exit(0)
    if not text:
        return _next_sitecustomize()
    score = _oom_score()
    found, failed, early = None, None, [b"", b""]
    try:
        config = json.loads(text)
        if config["pythonpath"] is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = config["pythonpath"]
        page = Page(config["page"])
        page.say(IMPORTING)
        channel = socket.socket(fileno=config["socket"])
        channel.set_inheritable(False)
    except BaseException:  # noqa: BLE001 - nothing can be told, and nobody has been told to count on it
        os._exit(GONE)
    try:
        try:
            found = _next_sitecustomize()
        except Exception as error:  # noqa: BLE001 - site reports it, when this function raises it
            failed = error
        early = [_read_all(number) for number in (1, 2)]
        _set_oom_score(str(IDLE_OOM_SCORE))
        _set_oom_score(score)
        if _oom_score() != score:
            raise Unusable(f"{OOM_SCORE} cannot be set back to {score}")
        _set_oom_score(str(IDLE_OOM_SCORE))
        preloaded = _preload(config["imports"])
        why = ""
        page.say(READY)
    except CannotImport as error:
        why = str(error)
        page.say(MODULE, error.text)
    except Unusable as error:
        why = str(error)
        page.say(UNUSABLE, why)
    except BaseException as error:  # noqa: BLE001 - a cold start will show the user what is wrong
        why = f"{type(error).__name__}: {error}"
        page.say(UNUSABLE, why)
    request = _wait(channel)
    try:
        _become(request, score, early)
        if why:
            raise Unusable(why)
        preloaded.check()
        channel.close()
        preloaded.hide(request, page)
        page.say(WARM)
    except BaseException as error:  # noqa: BLE001 - whatever it is, training starts
        _start_cold(request, page, str(error) if isinstance(error, Unusable) else repr(error))
    if failed is not None:
        raise failed
    return found


class Request:
    """What torch would have started: ``args`` after the interpreter, ``env``, ``cwd``; the descriptors of
    its output."""

    def __init__(self, values: Mapping[str, Any], stdout: int, stderr: int) -> None:
        self.args: list[str] = values["args"]
        self.env: dict[str, str] = values["env"]
        self.cwd: str = values["cwd"]
        self.stdout, self.stderr = stdout, stderr


def _wait(channel: socket.socket) -> Request:
    """Wait until torchrun wants a worker; if it is gone, so is this process."""
    try:
        data, files, _, _ = socket.recv_fds(channel, 1, 3)
        if not data or len(files) != 3:
            os._exit(GONE)
        with open(files[0], "rb") as file:
            file.seek(0)
            return Request(json.load(file), files[1], files[2])
    except BaseException:  # noqa: BLE001 - KeyboardInterrupt, too
        os._exit(GONE)


def _become(request: Request, score: str, early: Sequence[bytes]) -> None:
    """Everything of the process that a worker has otherwise: environment, folder, output, place in the queue
    of what is killed for memory. ``early`` is what ``site`` has written so far, which comes first."""
    _set_oom_score(score)
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)
    global _said
    _said = [_read_all(number)[len(early[number - 1]) :] for number in (1, 2)]
    for number, descriptor in enumerate((request.stdout, request.stderr), 1):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
        _write_all(number, early[number - 1])
    for number, stream in enumerate((sys.__stdout__, sys.__stderr__), 1):
        _reopen(stream, number)


_said: list[bytes] = [b"", b""]
"""What the imports have written to output and error output: written when the script imports them."""
_process_name = ""
"""What they have called the process: torch 2.4 does so."""


def _read_all(descriptor: int) -> bytes:
    """What was written to this file so far."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0) if size else b""


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _reopen(stream: Any, number: int) -> None:
    """Let Python's stream see what its descriptor is now (whether it can seek), as the same object."""
    if type(stream) is not io.TextIOWrapper or type(stream.buffer) is not io.FileIO:
        raise Unusable("Python's output is not what it is in a worker (python -u)")
    raw = io.FileIO(number, "wb", closefd=False)  # not the old one: that remembers whether it can seek
    raw.name = stream.name
    encoding, errors = stream.encoding, stream.errors
    line, through = stream.line_buffering, stream.write_through
    stream.__init__(raw, encoding, errors, "\n", line, through)  # type: ignore[misc]
    vars(stream)["mode"] = "w"


def _start_cold(request: Request, page: Page, why: str, state: bytes = COLD) -> None:
    """Be a cold start after all, in this process: torch knows nothing else of it."""
    page.say(state, why)
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request.cwd)
        os.execve(sys.executable, [sys.executable, *request.args], request.env)
    finally:
        os._exit(GONE)


def _next_sitecustomize() -> ModuleType | None:
    """The user's own module of this name, as ``site`` would have imported it."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        return importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return None
    finally:
        sys.modules.pop("sitecustomize", None)
        if ours is not None:
            sys.modules["sitecustomize"] = ours  # importlib expects it there, until it is replaced


def _oom_score() -> str:
    return _read(OOM_SCORE)


def _set_oom_score(value: str) -> None:
    _write(OOM_SCORE, value)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, value: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(value)
    except OSError:
        pass


def _script_folder(args: Sequence[str]) -> str | None:
    """What Python puts first into ``sys.path`` for this command, None for nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    return os.getcwd() if args[0] == "-m" else os.path.dirname(os.path.realpath(args[0]))


def _command() -> list[str]:
    """What follows ``python -u``."""
    return list(sys.orig_argv[2:])


def _preload(names: Sequence[str]) -> Preloaded:
    """Import the modules, and remember what belongs to them."""
    before, name_before, path_before = set(sys.modules), _read(PROCESS_NAME), list(sys.path)
    folder = _script_folder(_command())
    if folder is not None:
        sys.path.insert(0, folder)
    added = AddedFolders()
    needs: dict[str, set[str]] = {}
    """Which top-level packages each has imported, by import statements or by the first import of it."""
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


class AddedFolders:
    """What the modules have added to ``sys.path``: torch 2.8 a temporary folder at its end. The script gets
    such folders when it imports the module, or one that was first imported for it, and with them those of the
    modules before it in the list: it may have found them there, and added none of its own."""

    def __init__(self) -> None:
        self._now = list(sys.path)
        self._added: list[tuple[list[str], list[str]]] = []
        """Of each module in the list: folders before all others, folders after them."""
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


def _open_device() -> str:
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.startswith("/dev/") and not path.startswith(DEVICES) and int(number) > 2:
            return path
    return ""


class Preloaded:
    """The modules that were imported beforehand. The script finds them when it imports them, not before: if
    it changes the environment before, a cold start would see that."""

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
        command = _command()
        if command[0] == "-m" and {command[1], f"{command[1]}.__main__"} & set(sys.modules):
            raise Unusable(f"{command[1]}, which is to run, was imported beforehand")
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

    def hide(self, request: Request, page: Page) -> None:
        """Take them out of ``sys.modules``, and stand by for the script to import them."""
        for modules in self._modules.values():
            for name in modules:
                sys.modules.pop(name, None)
        global _process_name
        _process_name = _read(PROCESS_NAME)
        _write(PROCESS_NAME, self._name_before)
        if self._modules:
            sys.meta_path.insert(0, HandOver(self._modules, self._needs, self._added, request, page))


class HandOver:
    """A finder that gives the script what was imported beforehand; its own import would give the same."""

    def __init__(
        self,
        modules: Mapping[str, dict[str, ModuleType]],
        needs: Mapping[str, set[str]],
        added: AddedFolders,
        request: Request,
        page: Page,
    ) -> None:
        self._modules = dict(modules)
        self._needs, self._added = needs, added
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
        """The module, and what it has imported itself back where Python looks for them."""
        changed = sorted(_changed(self._env, os.environ))
        if changed and os.getpid() == self._pid:
            text = f"the script sets {', '.join(changed)} before it imports {spec.name}"
            _start_cold(self._request, self._page, text, SCRIPT)
        module = self._modules[spec.name][spec.name]
        self._spec = module.__spec__
        for top in self._needs[spec.name]:
            for name, one in self._modules.pop(top, {}).items():
                sys.modules.setdefault(name, one)
        self._added.add(self._needs[spec.name])
        if not self._modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            atexit.unregister(self._put_back)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already; what it has written then is written now."""
        module.__spec__ = self._spec
        global _said, _process_name
        said, _said = _said, [b"", b""]
        name, _process_name = _process_name, ""
        if name:
            _write(PROCESS_NAME, name)
        for number, data in enumerate(said, 1):
            _write_all(number, data)

    def _put_back(self) -> None:
        """Python ends, and takes down what is in ``sys.modules`` next: with it, and in order, what the script
        has never imported. Else libraries complain of what is left."""
        for modules in self._modules.values():
            for name, one in modules.items():
                sys.modules.setdefault(name, one)


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {*before, *now}:
        if before.get(name) != now.get(name) and not name.startswith(NOT_READ):
            yield name


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
