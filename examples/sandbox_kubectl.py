"""The kubectl of a sandbox: the real one, but for ``exec``, which devcluster's nodes do not serve.

It enters the namespaces of the container's processes, with the environment and in the folder of its main one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from devcluster.nodeagent.client import NodeAgentClient, NodeAgentError

_FLAGS = {"ignore_unknown_options": False, "allow_interspersed_args": True}


def main(binary: str, control: str) -> None:
    """``binary``: the real kubectl. ``control``: the socket of the nodes."""
    words = sys.argv[1:]
    own = words[: words.index("--")] if "--" in words else words
    if "exec" not in own:
        os.execv(binary, ["kubectl", *words])
    _execute.main([word for word in words if word != "exec"], "kubectl exec", obj=control)


@click.command(context_settings=_FLAGS)
@click.option("--kubeconfig")
@click.option("--context")
@click.option("-n", "--namespace", default="default")
@click.option("-c", "--container")
@click.option("-i", "--stdin", is_flag=True)
@click.option("-t", "--tty", is_flag=True)
@click.argument("pod")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def _execute(
    control: str, /, namespace: str, pod: str, container: str | None, command: tuple[str, ...], **_: object
) -> None:
    try:
        pids = NodeAgentClient(Path(control)).pids(namespace, pod.removeprefix("pod/"), container)
    except (NodeAgentError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if not pids:
        raise click.ClickException(f"no container {container or ''} of pod {pod} runs")
    main_process = Path(f"/proc/{pids[0]}")
    entries = (main_process / "environ").read_bytes().split(b"\0")
    environment = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    enter = ["nsenter", f"--target={pids[0]}", *user, "--pid", "--mount", "--uts"]
    os.execvpe("nsenter", [*enter, f"--wd={os.readlink(main_process / 'cwd')}", "--", *command], environment)
