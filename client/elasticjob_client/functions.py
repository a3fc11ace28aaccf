"""From what a program wants to train, a script or a function, to what is applied."""

from __future__ import annotations

import inspect
import json
import secrets
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticjob_client import manifest
from elasticjob_client.resource import ElasticJob

_SCRIPT = '''\
"""Made from the function {name}."""

import json

from torch.distributed.elastic.multiprocessing.errors import record

{source}

if __name__ == "__main__":
    record({name})(**json.loads({arguments!r}))
'''


def script_of(function: Callable[..., Any], arguments: Mapping[str, Any] | None = None) -> str:
    """A script that calls the function with these keyword arguments.

    The function travels as source, so it imports what it uses in its own body. Raises ValueError if it cannot
    travel, with what stands in the way.
    """
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function) or not name.isidentifier():
        raise ValueError(f"{function!r} is not a function with a name: expected one that begins with `def`")
    if function.__code__.co_freevars:
        used = ", ".join(function.__code__.co_freevars)
        raise ValueError(f"{name} uses variables of the function around it ({used}): pass them as arguments")
    try:
        inspect.signature(function).bind(**(arguments or {}))
        encoded = json.dumps(dict(arguments or {}))
        source = textwrap.dedent(inspect.getsource(function))
    except TypeError as error:
        raise ValueError(f"{name} cannot be called with these arguments: {error}") from error
    except OSError as error:
        raise ValueError(
            f"the source of {name} cannot be read ({error}): write it into a file or a cell"
        ) from error
    return _SCRIPT.format(name=name, source=source.rstrip(), arguments=encoded)


def prepared(
    what: Callable[..., Any] | str | Path,
    image: str,
    name: str | None,
    arguments: Mapping[str, Any] | Sequence[str],
    code: str | Path | None,
    asked: Mapping[str, Any],
) -> tuple[ElasticJob, dict[str, Any]]:
    """The job, and the ConfigMap of its code. Raises ValueError if it cannot be packed."""
    words: tuple[str, ...] = ()
    if callable(what):
        if arguments and not isinstance(arguments, Mapping):
            raise ValueError(f"a function's arguments are keywords: expected a dict, found {arguments!r}")
        source = script_of(what, arguments if isinstance(arguments, Mapping) else {})
        script, files = "train.py", {"train.py": source.encode()}
        manifest.check_size(files)
    else:
        if isinstance(arguments, (Mapping, str)):
            raise ValueError(f"a script's arguments are words: expected a list, found {arguments!r}")
        script, files = manifest.packed(Path(what), Path(code) if code else None)
        words = tuple(arguments)
    chosen = name or manifest.name_of(getattr(what, "__name__", script), secrets.token_hex(2))
    manifest.check_name(chosen)
    run = manifest.Run(name=chosen, image=image, script=script, arguments=words, **asked)
    return manifest.elastic_job(run, files), manifest.config_map(chosen, files)
