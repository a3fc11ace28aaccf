"""What a handler leaves behind in its process: descriptors, ports and threads, native ones too.

Each in a process of its own, whose cyclic collection is off: what is only freed there is left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PROLOGUE = """
import gc, os, sys, threading, time
from dataclasses import replace
from elasticjob.contract.round_record import RoundRecord
from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.agent.resolver import shorten_lookups
from elasticjob.agent.settings import Settings
from tests.unit.memory_api import Leases, MemoryApi, broken

def open_files():
    return len(os.listdir("/proc/self/fd"))

def native_threads():
    return len(os.listdir("/proc/self/task"))

def in_thread(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread

def new(leases, pod="a"):
    settings = Settings("ns", "job", pod=pod, pod_uid="uid-" + pod)
    return K8sRendezvousHandler(settings, "run", lambda: MemoryApi(leases))

def one_round(leases, handler, number=1, but=""):
    def publish():
        record = leases.announced("a", but)
        leases.publish(RoundRecord("uid", number, "Active", f"n{number}", (record.id,), record.endpoint))
    publisher = in_thread(publish)
    info = handler.next_rendezvous()
    publisher.join()
    return info

class Level:
    # What is open now. A thread that was told to end may take a moment, and one more or less is on its way.

    def __init__(self):
        self.now = self.before = self.read()

    def read(self):
        return open_files(), native_threads()

    def is_kept(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self.now = self.read()
            if all(now <= before + 3 for now, before in zip(self.now, self.before)):
                return True
            time.sleep(0.05)
        return False

    def __str__(self):
        return f"files and threads: {self.before} before, {self.now} now"

shorten_lookups("attempts:0")
gc.disable()
"""


def run(script: str) -> None:
    """Run it after the prologue; its assertions fail the test."""
    code = PROLOGUE + textwrap.dedent(script)
    environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_left_after_shutdown() -> None:
    """torch keeps the round's store for longer than that, and a process that it forks meanwhile collects what
    it finds: the threads of a server that is destroyed there are its parent's, and it dies of that."""
    run(
        """
        kept = []

        def use():
            leases = Leases()
            handler = new(leases)
            kept.append(one_round(leases, handler).store)
            handler.shutdown()

        use()
        level = Level()
        for _ in range(100):
            use()
        assert level.is_kept(), level
        for _ in range(20):
            use()
            pid = os.fork()
            if pid == 0:
                kept.clear()
                gc.collect()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        """
    )


def test_nothing_is_left_of_a_rendezvous_that_raised() -> None:
    """Not even while its exception, and with it the frames, is on its way."""
    run(
        """
        def use():
            leases = Leases()
            handler = new(leases)
            leases.publish(RoundRecord("uid", 3, "Closed", outcome="Failed", message="it has"))
            try:
                handler.next_rendezvous()
            except Exception as error:
                handler.shutdown()
                return error

        kept = [use()]
        level = Level()
        for _ in range(30):
            kept.append(use())
        assert level.is_kept(), level
        """
    )


FAILING = """
from torch.distributed import PrefixStore
from elasticjob.watch.heartbeats import ENDPOINT_KEY
from elasticjob.store.connect import connect
from elasticjob.store.server import serve

def rounds_that_fail(count, leader, arrived):
    # One handler, so many rounds that are over before they are established. leader() gives the leader's
    # endpoint, None for the handler's own; arrived(record, rank) waits until the handler is in the barrier.
    leases = Leases()
    handler = new(leases)
    in_thread(handler.next_rendezvous)
    last = ""
    for number in range(1, count + 1):
        mine = leases.announced("a", last)
        endpoint = leader(number)
        members, rank = ((mine.id, "absent"), 0) if endpoint is None else (("absent", mine.id), 1)
        record = RoundRecord("uid", number, "Active", f"n{number}", members, endpoint or mine.endpoint)
        leases.publish(record)
        arrived(record, rank)
        leases.publish(broken(record))
        last = mine.id
        if number == 5:
            leases.announced("a", last)
            level = Level()
    leases.announced("a", last)
    assert level.is_kept(), level

def in_the_barrier(record, rank):
    store = connect(record.leader_endpoint)
    PrefixStore(f"elasticjob/uid/{record.number}/{record.nonce}", store).wait([f"{ENDPOINT_KEY}{rank}"])
"""


def test_nothing_is_left_of_rounds_that_fail_on_the_leader() -> None:
    """Some 90 in a row used up 1,024 descriptors."""
    run(FAILING + "\nrounds_that_fail(30, lambda number: None, in_the_barrier)")


def test_nothing_is_left_of_rounds_that_fail_on_a_member() -> None:
    run(
        FAILING
        + """
server = serve()
rounds_that_fail(30, lambda number: f"127.0.0.1:{server.port}", in_the_barrier)
"""
    )
