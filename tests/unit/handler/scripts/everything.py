"""Writes all that a script can see of its process, before and after it imports torch, to $REPORT."""

# mypy: ignore-errors
# ruff: noqa: E402, SIM115, I001
x: int = 1
import atexit
import faulthandler
import gc
import inspect
import json
import os
import resource
import signal
import sys
import threading
import warnings

here = sys.modules["__main__"]


def seen():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    files = "/proc/self/fd"
    links = []
    for number in sorted(os.listdir(files), key=int):
        try:
            links.append((number, os.readlink(f"{files}/{number}").split(":")[0]))
        except OSError:
            continue
    return {
        "frames": [frame.function for frame in inspect.stack()],
        "meta_path": [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
        "torch is imported": [name in sys.modules for name in ("torch", "numpy", "sympy", "sitecustomize")],
        "elasticjob": sorted(
            name for name in {*sys.modules, *sys.path_importer_cache} if "elasticjob" in name
        ),
        "path": list(sys.path),
        "path hooks": [str(one).partition(" at ")[0] for one in sys.path_hooks],
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "command line": open("/proc/self/cmdline").read().split("\0"),
        "name of the process": open("/proc/self/comm").read(),
        "flags": repr(sys.flags),
        "executable": sys.executable,
        "options": [repr(sys._xoptions), sys.warnoptions],
        "environment": list(os.environ.items()),
        "folder": os.getcwd(),
        "umask": status["Umask"],
        "signals": [status[key] for key in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd", "SigPnd")],
        "handlers": [str(signal.getsignal(n)).partition(" at ")[0] for n in sorted(signal.valid_signals())],
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        },
        "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
        "parent": os.getppid() == int(os.environ["PARENT"]),
        "out-of-memory score": open("/proc/self/oom_score_adj").read(),
        "nice": [os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "security": [status.get("Seccomp"), status.get("NoNewPrivs"), status.get("CapEff")],
        "files": links,
        "threads": [threading.active_count(), len(os.listdir("/proc/self/task"))],
        "main thread": [
            threading.current_thread() is threading.main_thread(),
            threading.get_native_id() == os.getpid(),
        ],
        "faulthandler": faulthandler.is_enabled(),
        "garbage": [gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()],
        "hooks": [
            sys.excepthook is sys.__excepthook__,
            sys.displayhook is sys.__displayhook__,
            sys.unraisablehook is sys.__unraisablehook__,
            threading.excepthook is threading.__excepthook__,
            str(sys.gettrace()),
            str(sys.getprofile()),
            __builtins__.__import__.__name__ if hasattr(__builtins__, "__import__") else "",
        ],
        "recursion": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "streams": {
            name: [
                type(stream).__name__,
                type(stream.buffer).__name__,
                stream.name,
                stream.mode,
                stream.encoding,
                stream.errors,
                stream.newlines,
                stream.line_buffering,
                stream.write_through,
                stream.seekable(),
                stream.isatty(),
                stream.fileno(),
                stream.buffer.mode,
                getattr(sys, f"__{name}__") is stream,
                sorted(vars(stream)),
            ]
            for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr))
        },
        "atexit": atexit._ncallbacks() if "torch" in sys.modules else None,
    }


def shape(module):
    return {
        "order": [name for name in vars(module) if name.startswith("__")],
        **{
            name: repr(value).partition(" object at ")[0]
            for name, value in vars(module).items()
            if name.startswith("__") and name != "__builtins__"
        },
        "builtins": type(module.__builtins__).__name__,
        "doc": module.__doc__,
    }


report = {"before torch": seen()}
import local_module

import torch
import torch.distributed

report["main"] = shape(here)
report["is main"] = here.__dict__ is globals()
report["after torch"] = seen()
report["spec of torch"] = [
    str(getattr(torch.__spec__, name)).partition(" at ")[0]
    for name in ("name", "loader", "origin", "cached", "submodule_search_locations", "has_location")
]
report["modules"] = sorted(
    name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy", "sympy", "local_module")
)
report["source"] = inspect.getsource(shape).splitlines()[0], shape.__code__.co_filename
report["local module"] = local_module.VALUE, local_module.__file__
report["filters"] = [str(one) for one in warnings.filters]
report["torch"] = {
    "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "dtype": str(torch.get_default_dtype()),
    "gradients": torch.is_grad_enabled(),
    "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "distributed": torch.distributed.is_available() and torch.distributed.is_initialized(),
}
import ctypes

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
report["environment of C"] = {name: (libc.getenv(name.encode()) or b"").decode() for name in os.environ}
varies = {"seed": torch.initial_seed(), "number": torch.rand(1).item()}
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.5)
optimizer.param_groups[0]["params"][0].sum().backward()
optimizer.step()
report["trained"] = optimizer.param_groups[0]["params"][0].tolist()
report["path after an optimizer"] = list(sys.path)
report["modules after an optimizer"] = sorted(
    name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy", "sympy", "local_module")
)
with open(os.environ["REPORT"], "w") as file:
    json.dump({"same": report, "varies": varies}, file, default=str)
print("to the output")
print("to the error output", file=sys.stderr)
