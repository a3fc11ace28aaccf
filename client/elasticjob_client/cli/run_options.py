"""The options of ``run``: wrong values are refused before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from elasticjob_client import names
from elasticjob_client.keywords import READ_ONLY, mounted
from elasticjob_client.text import is_utf8

_LOCAL = ("script", "code", "kubeconfig", "context")
"""Names of local files and of the kubeconfig: they may be any bytes."""
_QUANTITY = re.compile(r"(\d+(\.\d*)?|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")


def variables(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Values by name; the last one wins. Raises BadParameter."""
    pairs = [value.partition("=") for value in values]
    for value, (name, found, _rest) in zip(values, pairs, strict=True):
        if not name or not found:
            raise click.BadParameter(f"{value!r}: expected NAME=VALUE")
    return {name: value for name, _, value in pairs}


def volumes(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Claims, as ``manifest.Run`` has them, by the path where they are mounted. Raises BadParameter."""
    claims: dict[str, str] = {}
    for value in values:
        claim, _colon, rest = value.removesuffix(READ_ONLY).partition(":")
        if not rest.startswith("/") or ":" in rest:
            raise click.BadParameter(f"{value!r}: expected CLAIM:/path, or CLAIM:/path:ro to read only")
        if not names.is_name("a claim", claim):
            raise click.BadParameter(
                f"{value!r}: expected CLAIM:/path; {claim!r} cannot name a PersistentVolumeClaim"
            )
        there = rest.rstrip("/") or "/"
        if there in claims:
            before, _read_only = mounted(claims[there])
            raise click.BadParameter(
                f"two claims for {there}, {before} and {claim}: expected a path of its own for each"
            )
        claims[there] = f"{claim}{READ_ONLY}" if value.endswith(READ_ONLY) else claim
    return claims


def image(_: click.Context, __: click.Parameter, value: str) -> str:
    """Raises BadParameter if it cannot name an image."""
    if not value or value.split() != [value]:
        raise click.BadParameter(f"{value!r} names no image: expected one such as pytorch/pytorch:2.6.0")
    return value


def quantity(_: click.Context, option: click.Parameter, value: str) -> str:
    """Raises BadParameter for what is no amount of CPU or memory."""
    if value and not _QUANTITY.fullmatch(value):
        such = "4 or 500m" if option.name == "cpu" else "16Gi or 512Mi"
        raise click.BadParameter(f"{value!r} is no amount: expected one such as {such}")
    return value


def check_script(script: str, code: Path | None, in_image: bool) -> None:
    """Raises BadParameter or UsageError if there is no such script to upload."""
    if in_image and code:
        raise click.UsageError(
            "--in-image uploads nothing, and --code uploads a directory: name one of the two"
        )
    if not script:
        raise _no_script("'' is no file: expected the path of a script, such as train.py")
    path = Path(script)
    if in_image:
        if not is_utf8(script):
            raise _no_script(f"{script!r} has bytes that are not UTF-8")
        return
    if path.is_dir():
        inside = f"elasticjob run {path / 'train.py'} --code {path}"
        raise _no_script(f"{script!r} is a directory: name the script in it, such as `{inside}`")
    if not path.exists():
        raise _no_script(
            f"there is no file {script!r}: expected a script, or --in-image if it is in the image"
        )
    if code and not path.resolve().is_relative_to(code.resolve()):
        raise _no_script(f"{script!r} is not in {str(code)!r}: --code must be a directory that contains it")


def _no_script(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint="'SCRIPT'")


def check_name(name: str | None) -> None:
    """Raises BadParameter if a job cannot have it."""
    if name is None:
        return
    try:
        names.check_name("a new job", name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--name'") from error


class ForManifest(click.Command):
    """On an unknown option, point to ``--``. On text that no manifest can hold, name the option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = "The script's own arguments come after --, such as `-- --lr 0.1`."
            raise click.UsageError(f"{error.format_message()} {own}", ctx) from error
        for parameter in self.params:
            if parameter.name not in _LOCAL and not all(map(is_utf8, _texts(ctx.params.get(parameter.name)))):
                raise click.BadParameter("it has bytes that are not UTF-8", ctx, parameter)
        return rest


def _texts(value: object) -> list[str]:
    """All texts in an option's value."""
    if isinstance(value, Mapping):
        return _texts([*value, *value.values()])
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []
