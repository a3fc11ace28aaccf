"""Ends as its first argument says. ``early`` is a module that is imported beforehand."""

# mypy: ignore-errors
import atexit
import ctypes
import faulthandler
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import early

what = sys.argv[1]


class Cell:
    def __del__(self):
        print("collected")


def inner(value):
    raise ValueError(f"from {value}")


def child(queue):
    queue.put((__name__, os.environ["RANK"], sys.argv, early.VALUE))


def by(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(method, *queue.get(timeout=60), flush=True)
    process.join()
    print(process.exitcode)


if __name__ == "__main__":
    if what == "code":
        sys.exit(3)
    if what == "text":
        sys.exit("a message")
    if what == "none":
        sys.exit()
    if what == "raises":
        inner("here")
    if what == "syntax":
        compile("x =", "y", "exec")
    if what == "at once":
        print("lost?", end="")
        os._exit(7)
    if what == "interrupted":
        raise KeyboardInterrupt
    if what.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, what))
        time.sleep(30)
    if what == "segmentation fault":
        faulthandler.disable()
        ctypes.string_at(0)
    if what == "abort":
        os.abort()
    if what == "faulthandler":
        faulthandler.dump_traceback()
    if what == "at exit":
        atexit.register(lambda: print("at exit"))
        threading.Thread(target=lambda: (time.sleep(0.1), print("the thread has ended"))).start()
        cell = Cell()
    if what == "chain":
        try:
            inner("first")
        except ValueError as error:
            raise RuntimeError("second") from error
    if what == "hook":
        sys.excepthook = lambda t, v, tb: print(t, v, [f.name for f in traceback.extract_tb(tb)])
        inner("hooked")
    if what == "thread raises":
        thread = threading.Thread(target=inner, args=("a thread",), name="the thread")
        thread.start()
        thread.join()
    if what == "stdin":
        print(repr(sys.stdin.read()))
    if what == "children":
        for method in ("fork", "spawn", "forkserver"):
            by(method)
        print(subprocess.check_output([sys.executable, "-c", "import sys; print(sys.path[0], sys.flags)"]))
    if what == "environment of children":
        print(subprocess.check_output(["env", "-0"]).split(b"\0"))
    if what == "resources":
        os.umask(0o27)
        print(os.umask(0), json.dumps(sys.orig_argv))
    if what == "record":
        from torch.distributed.elastic.multiprocessing.errors import record

        record(inner)("a recorded function")
    if what == "data loader":
        import torch

        for method in ("fork", "spawn"):
            data = torch.utils.data.DataLoader(
                list(range(4)), batch_size=2, num_workers=1, multiprocessing_context=method
            )
            print(method, [batch.tolist() for batch in data])
