"""The order of things, from the start of the interpreter to that of the script."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .page import (
    CONFIG_ENV,
    GONE,
    IMPORTING,
    MODULE,
    READY,
    UNUSABLE,
    WARM,
    CannotImport,
    Page,
    Unusable,
    wait_for_request,
)
from .preload import preload
from .process import OOM_SCORE, become, raise_oom_score, read, start_cold, written


def run(folder: str) -> ModuleType | None:
    """Become the worker, and return the user's own ``sitecustomize`` if there is one.

    Returns when everything is as in a cold start. Does not return if the process becomes a cold start, or if
    torchrun is gone. ``folder`` is that of our ``sitecustomize.py``.
    """
    while folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    text = os.environ.pop(CONFIG_ENV, "")
    if text == "probe":
        os._exit(0)
    if not text:
        return _next_sitecustomize()
    oom_score = read(OOM_SCORE)
    found, failed, early, why = None, None, [b"", b""], ""
    config, page, channel = _begin(text)
    try:
        try:
            found = _next_sitecustomize()
        except Exception as error:  # noqa: BLE001 - site reports it, when this function raises it
            failed = error
        early = written()
        raise_oom_score(oom_score)
        preloaded = preload(config["imports"])
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
    request = wait_for_request(channel)
    try:
        output = become(request, oom_score, early)
        if why:
            raise Unusable(why)
        preloaded.check()
        channel.close()
        preloaded.hide(request, page, output)
        page.say(WARM)
    except BaseException as error:  # noqa: BLE001 - training starts in any case
        start_cold(request, page, str(error) if isinstance(error, Unusable) else repr(error))
    if failed is not None:
        raise failed
    return found


def _begin(text: str) -> tuple[Mapping[str, Any], Page, socket.socket]:
    """The configuration, the page, and the channel on which the request comes. Ends the process if that
    fails: it can't report it, and torchrun does not count on it yet."""
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
    except BaseException:  # noqa: BLE001 - as above
        os._exit(GONE)
    return config, page, channel


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
