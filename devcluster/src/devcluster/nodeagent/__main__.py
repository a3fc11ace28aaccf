"""``python -m devcluster.nodeagent``: see :mod:`devcluster.nodeagent`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path

from devcluster.nodeagent.agent import Agent, Settings
from devcluster.nodeagent.images import Images
from devcluster.nodeagent.workload import Backoff

_MAX_BACKOFF_SECONDS = 30.0
"""Before a container's later restarts; kubelet's own is 300."""


def _arguments() -> Settings:
    parser = argparse.ArgumentParser(
        prog="python -m devcluster.nodeagent", description="A test double of kubelet."
    )
    parser.add_argument("--kubeconfig", type=Path, required=True, help="of a user with all rights")
    parser.add_argument("--nodes", required=True, help="names of the nodes to play, with commas between")
    parser.add_argument("--state-dir", type=Path, required=True, help="for pods' volumes and logs")
    parser.add_argument(
        "--images", type=Path, required=True, help="JSON: image name -> directory of its programs"
    )
    parser.add_argument("--control", type=Path, required=True, help="Unix socket for faults")
    parser.add_argument("--backoff", type=float, default=1.0, help="seconds before the second restart")
    parser.add_argument("--netns", action="store_true", help="give every pod a network of its own (root)")
    parser.add_argument(
        "--token-seconds", type=float, help="replace the pods' tokens so often (default: as kubelet does)"
    )
    given = parser.parse_args()
    return Settings(
        kubeconfig=given.kubeconfig,
        nodes=given.nodes.split(","),
        state_dir=given.state_dir.absolute(),
        images=Images(given.images.absolute()),
        control=given.control,
        backoff=Backoff(given.backoff, _MAX_BACKOFF_SECONDS),
        netns=given.netns,
        token_seconds=given.token_seconds,
    )


async def _main(settings: Settings) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # Readable when the parent ends: without it there is nothing to play for.
    parent = os.pidfd_open(os.getppid())
    loop.add_reader(parent, stop.set)
    await Agent.run(settings, stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(_main(_arguments()))
