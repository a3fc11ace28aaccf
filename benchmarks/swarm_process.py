"""A process that holds a part of the swarm: one event loop, hundreds of participants, commanded over a pipe.

Commands in, answers out, both pickled:

    list[SwarmSeat]          -> number of participants, once they are there
    Call                     -> list[Passed], or a sentence when a call did not return in time
    "usage"                  -> Usage
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import gc
import os
import ssl
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from benchmarks.swarm_messages import Call, Usage
    from benchmarks.swarm_participant import SwarmParticipant

TLS_BUFFER_BYTES = 4096


def main(descriptor: int) -> NoReturn:
    """The process's whole life: obey until the pipe is closed."""
    sys.path[0] = str(Path(__file__).parent.parent)
    import elasticjob.watch.establish  # noqa: F401 - and torch with it: a leader needs it at once

    # It lives for one join and its re-joins: what a collector would look through in that time are the other
    # participants, again and again.
    gc.disable()
    # Each TLS connection of asyncio has a buffer of that size for its life, 256 KB otherwise.
    asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    asyncio.run(_serve(Connection(descriptor)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _serve(connection: Connection) -> None:
    from benchmarks.swarm_messages import Call
    from benchmarks.swarm_participant import SwarmParticipant

    participants: list[SwarmParticipant] = []
    loop = asyncio.get_running_loop()
    commands: asyncio.Queue[object] = asyncio.Queue()

    def arrived() -> None:
        try:
            commands.put_nowait(connection.recv())
        except (EOFError, OSError):
            loop.remove_reader(connection.fileno())
            commands.put_nowait(None)

    loop.add_reader(connection.fileno(), arrived)
    connection.send(0)
    while (command := await commands.get()) is not None:
        if isinstance(command, list):
            tls = {seat.ca_file: ssl.create_default_context(cafile=seat.ca_file) for seat in command}
            participants = [SwarmParticipant(seat, tls[seat.ca_file]) for seat in command]
            connection.send(len(participants))
        elif isinstance(command, Call):
            connection.send(await _call(participants, command))
        else:
            connection.send(_usage(participants))


async def _call(participants: list[SwarmParticipant], command: Call) -> object:
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[object]] = []
    begun = loop.create_future()

    def begin() -> None:
        tasks.extend(loop.create_task(one.call()) for one in participants)
        begun.set_result(None)

    loop.call_at(command.at, begin)
    await begun
    done, missing = await asyncio.wait(tasks, timeout=command.timeout, return_when=asyncio.FIRST_EXCEPTION)
    errors = [task.exception() for task in done if task.exception() is not None]
    for task in missing:
        task.cancel()
    if errors:
        return f"{type(errors[0]).__name__}: {errors[0]}"
    if missing:
        return f"{len(missing)} of {len(tasks)} did not return within {command.timeout:g} s"
    return [task.result() for task in tasks]


def _usage(participants: list[SwarmParticipant]) -> Usage:
    from benchmarks.swarm_messages import Usage

    traffic = [one.traffic() for one in participants]
    return Usage(
        sum(sent for sent, _ in traffic),
        sum(received for _, received in traffic),
        sum(one.refused for one in participants),
        time.process_time(),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
