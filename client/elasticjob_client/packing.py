"""Packs a script, or a function of a Python program, into a job and the ConfigMap with its code."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import secrets
import symtable
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticjob_client import manifest
from elasticjob_client.keywords import checked, kind_of, text, words
from elasticjob_client.names import check_name
from elasticjob_client.resource import ElasticJob

_SCRIPT = '''\
"""Made from the function {name}."""

from __future__ import annotations

import json

from torch.distributed.elastic.multiprocessing.errors import record

{source}

if __name__ == "__main__":
    record({name})(**json.loads({arguments!r}))
'''
_KNOWN = (set(dir(builtins)) | {"__file__"}) - {"display", "get_ipython"}
"""Names that each script has; IPython adds some of its own."""


def script_of(function: Callable[..., Any], arguments: Mapping[str, Any] | None = None) -> str:
    """A script that calls the function with these keyword arguments.

    The function travels as source, so it imports what it uses in its own body. Raises ValueError if it cannot
    travel, with what stands in the way.
    """
    if not inspect.isfunction(function) or inspect.unwrap(function).__name__ == "<lambda>":
        raise ValueError(f"{function!r} is not a function with a name: expected one that begins with `def`")
    inner: Any = inspect.unwrap(function)
    name = inner.__code__.co_name
    if not name.isidentifier():
        raise ValueError(f"{function!r} is not a function with a name: expected one that begins with `def`")
    if (
        inspect.iscoroutinefunction(inner)
        or inspect.isgeneratorfunction(inner)
        or inspect.isasyncgenfunction(inner)
    ):
        raise ValueError(
            f"{name} has to run when it is called: expected no `async def`, and no `yield` in it"
        )
    if inner.__code__.co_freevars:
        used = ", ".join(inner.__code__.co_freevars)
        raise ValueError(f"{name} uses variables of the function around it ({used}): pass them as arguments")
    try:
        inspect.signature(inner).bind(**(arguments or {}))
        encoded = json.dumps(dict(arguments or {}))
    except TypeError as error:
        raise ValueError(f"{name} cannot be called with these arguments: {error}") from error
    try:
        source = textwrap.dedent(inspect.getsource(inner))
    except (OSError, TypeError) as error:
        raise ValueError(
            f"the source of {name} cannot be read ({error}): write it into a file or a cell"
        ) from error
    _must_stand_alone(name, source)
    if inner is not function:
        raise ValueError(
            f"{name} is wrapped by another function, which would not travel with it: expected {name} itself"
        )
    return _SCRIPT.format(name=name, source=source.rstrip(), arguments=encoded)


def _must_stand_alone(name: str, source: str) -> None:
    """Raises ValueError if the function needs what is outside of it."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"the source of {name} cannot be moved into a script: {error.msg}") from error
    function = tree.body[0] if tree.body else None
    if not isinstance(function, ast.FunctionDef) or function.name != name:
        raise ValueError(f"{name} is not a function with a name: expected one that begins with `def`")
    if function.decorator_list:
        decorator = ast.unparse(function.decorator_list[0])
        raise ValueError(f"{name} is decorated with {decorator}: expected none; the script adds @record")
    for node in ast.walk(tree):  # annotations are not evaluated in the script
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
    top = symtable.symtable(ast.unparse(tree), f"<{name}>", "exec")
    outside = [one.get_name() for one in top.get_symbols() if one.is_referenced() and one.get_name() != name]
    defaults = sorted(set(outside) - _KNOWN)
    if defaults:
        raise ValueError(f"a default of {name} uses `{defaults[0]}` from outside: write the value itself")
    used, made = _globals(top)
    missing = sorted(used - made - _KNOWN - {name})
    if missing:
        named = ", ".join(f"`{one}`" for one in missing)
        raise ValueError(
            f"{name} uses {named} from outside: import or define it in its body, or pass it as an argument"
        )


def _globals(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Names that the scopes inside look for in the module, and those that they put there."""
    used: set[str] = set()
    made: set[str] = set()
    for inner in table.get_children():
        for one in inner.get_symbols():
            if one.is_global():
                (made if one.is_assigned() or one.is_imported() else used).add(one.get_name())
        below = _globals(inner)
        used |= below[0]
        made |= below[1]
    return used, made


def prepared(
    what: Callable[..., Any] | str | Path,
    image: str,
    name: str | None,
    arguments: Mapping[str, Any] | Sequence[Any],
    code: str | Path | None,
    asked: Mapping[str, Any],
) -> tuple[ElasticJob, dict[str, Any]]:
    """The job, and the ConfigMap of its code. Raises ValueError if it cannot be packed, and TypeError or
    ValueError with what is expected instead of a field."""
    text("image", image)
    if name is not None:
        text("name", name)
    fields, given = checked(asked), tuple[str, ...]()
    if callable(what):
        if arguments and not isinstance(arguments, Mapping):
            raise ValueError(
                f"a function's arguments are keywords: expected a dict, and what is given "
                f"{kind_of(arguments)}"
            )
        source = script_of(what, arguments if isinstance(arguments, Mapping) else {})
        script, files = "train.py", {"train.py": source.encode()}
        manifest.check_size(files)
    else:
        if not isinstance(what, (str, Path)):
            raise TypeError(f"{what!r} cannot be trained: expected a function, or the path of a script")
        given = words(arguments)
        script, files = manifest.packed(Path(what), Path(code) if code else None)
    chosen = name or manifest.name_of(getattr(what, "__name__", script), secrets.token_hex(2))
    check_name("a new job", chosen)
    run = manifest.Run(name=chosen, image=image, script=script, arguments=given, **fields)
    return manifest.elastic_job(run, files), manifest.config_map(chosen, files)
