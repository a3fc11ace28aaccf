"""The program: its commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import ShellComplete, get_completion_class

from elasticjob_client.cli.options import cluster_flags, examples
from elasticjob_client.cli.printing import guard, raw
from elasticjob_client.cli.starting import begun, open_streams
from elasticjob_client.errors import ClientError

PLUGIN = "kubectl-ej"
_COMPLETE = "_ELASTICJOB_COMPLETE"
"""The variable by which a shell asks for completions."""


_COMMANDS = {
    "run": "run.run",
    "list": "reading.list_jobs",
    "status": "reading.job_status",
    "top": "top.top",
    "why": "reading.tell_why",
    "logs": "logs.logs",
    "events": "reading.show_events",
    "exec": "logs.execute",
    "stacks": "stacks.stacks",
    "scale": "changing.scale",
    "suspend": "changing.suspend",
    "resume": "changing.resume",
    "delete": "changing.delete",
    "report": "report.report",
    "drill": "drill.drill",
    "convert": "convert.convert",
    "doctor": "doctor.doctor",
    "completion": "main.completion",
}
"""The commands as the help lists them, each with its module and function."""


class OnDemand(click.Group):
    """Imports a command when it is called: the first output may not wait for what other commands need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(".")
        found: click.Command = getattr(import_module(f"elasticjob_client.cli.{module}"), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """On an unknown command, suggest the one that is most like it."""
        if args and args[0] not in _COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            like = get_close_matches(args[0], _COMMANDS, n=1)
            meant = f" Do you mean {like[0]}?" if like else " --help shows all."
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C ends it with 130, as a shell has it; click would say "Aborted!", and give 1."""
        try:
            begun()
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("", err=True)
            ctx.exit(130)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Flags before the command are defaults for the same flags after it."""
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = "Flags of a command come after it: elasticjob list -o json"
            raise click.UsageError(f"{error.format_message()} {advice}", ctx) from error
        given = {name: value for name, value in ctx.params.items() if value is not None}
        ctx.default_map = dict.fromkeys(_COMMANDS, given)
        return rest


@click.group(cls=OnDemand, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elasticjob-client", prog_name="elasticjob")
@cluster_flags
def program(**_: str | None) -> None:
    """Elastic PyTorch training on Kubernetes: run, inspect and change jobs.

    --kubeconfig, --context and --namespace work as in kubectl, before or after the command. All commands
    except exec and completion print JSON with -o json.
    """


@click.command(
    "completion",
    short_help="Print a shell completion script",
    epilog=examples(
        "source <(elasticjob completion bash)     # in ~/.bashrc",
        "source <(elasticjob completion zsh)      # in ~/.zshrc",
        "elasticjob completion fish | source      # in ~/.config/fish/config.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell script that completes commands and names of jobs."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(program, {}, "elasticjob", _COMPLETE).source())


def main() -> None:
    """Run it: exit code 0, 1 for an error of the cluster or the job, 2 for a wrong command line."""
    open_streams()
    if sys.stdout is None:
        _fail("cannot write the output: stdout is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # where its encoding lacks a letter, the rest still counts
            stream.reconfigure(errors="backslashreplace")
    if _COMPLETE not in os.environ:  # a shell reads that, and click writes it as bytes
        guard()
    name = "kubectl ej" if Path(sys.argv[0]).name == PLUGIN else "elasticjob"
    try:
        try:
            program(prog_name=name, complete_var=_COMPLETE)
        finally:
            sys.stdout.flush()
    except ClientError as error:
        _fail(str(error))
    except OSError as error:
        if error.filename is None:
            _drop_output()
            _fail(f"cannot write the output: {error.strerror or error}")
        _fail(f"{error.filename}: {error.strerror}")


def _fail(text: str) -> NoReturn:
    click.secho("error: ", fg="red", nl=False, file=raw(sys.stderr))
    click.echo(text, err=True)
    sys.exit(1)


def _drop_output() -> None:
    """Send the rest of a buffer to nowhere: it would fail again at the interpreter's end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


NO_FILES, FILES = ":4", ":0"
"""What kubectl is to do besides: offer no names of files, or offer them (cobra's ShellCompDirective)."""


def complete() -> None:
    """Complete `kubectl ej ...` for kubectl, which runs `kubectl_complete-ej` with the words so far.

    https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
    """
    guard()
    *words, begun = sys.argv[1:] or [""]
    found = ShellComplete(program, {}, "kubectl ej", "").get_completions(words, begun)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(FILES if any(item.type != "plain" for item in found) else NO_FILES)


if __name__ == "__main__":
    main()
