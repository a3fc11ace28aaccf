"""How a round, an agent and the job end: exit barrier, signals, workers that are left, another process."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.utils import store as store_util

from devcluster.wait import wait_for
from elasticjob.api.errors import Unavailable
from elasticjob.contract import names
from elasticjob.contract.round_record import RoundRecord
from elasticjob.store.errors import StoreGone
from tests.unit.handler.joining import Joining, ListedAgent, Start, form, two
from tests.unit.memory_api import Leases, broken


def test_the_end_of_the_job(leases: Leases, start: Start) -> None:
    one, other = Joining(start("a")), Joining(start("b"))
    leases.announced("a")
    leases.announced("b")
    leases.publish(RoundRecord("uid", 3, "Closed", outcome="Complete", message="done"))
    for joining in (one, other):
        with pytest.raises(SystemExit) as exit_:
            joining.result()
        assert exit_.value.code == 0


def test_the_root_failure_is_in_the_last_lines_of_every_log(leases: Leases, start: Start) -> None:
    joining = Joining(start("a"))
    leases.publish(RoundRecord("uid", 3, "Closed", outcome="Failed", message="a worker of b failed"))
    with pytest.raises(RendezvousClosedError, match="a worker of b failed"):
        joining.result()


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize(("late_seconds", "level"), [(0.0, "INFO"), (120.0, "WARNING")])
def test_an_agent_that_stood_by_while_its_run_trained_does_not_warn_that_it_has_trained_nothing(
    leases: Leases,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rounds: int,
    late_seconds: float,
    level: str,
) -> None:
    """A round that runs shows nothing: its members may have ended, and the late one closes the run."""
    monkeypatch.setattr("elasticjob.agent.joining.LATE_SECONDS", late_seconds)
    caplog.set_level("INFO", "elasticjob")
    joining = Joining(start("a", rounds="peers"))
    last = leases.announced("a")
    for number in range(1, rounds + 1):
        leases.publish(RoundRecord("uid", number, "Active", f"n{number}", ("b",), "h:1"))
        last = leases.announced("a", but=last.id)
    leases.publish(RoundRecord("uid", max(1, rounds), "Closed", outcome="Complete", message="done"))
    with pytest.raises(SystemExit) as exit_:
        joining.result()
    assert exit_.value.code == 0
    (said,) = [r for r in caplog.records if "this torchrun has trained nothing" in r.getMessage()]
    assert said.levelname == level


def test_only_the_operator_closes(leases: Leases, start: Start) -> None:
    """I8: whatever an agent does, nothing is closed for the others."""
    handlers, _, record = two(leases, start)
    handlers[0].set_closed()
    handlers[0].shutdown()
    assert not handlers[1].is_closed()
    assert handlers[1].num_nodes_waiting() == 0
    assert leases.leases["job-round"].annotations["elasticjob.dev/round"] == record.dump()


def test_shutdown_may_come_several_times(start: Start) -> None:
    handler = start("a")
    assert handler.shutdown()
    assert handler.shutdown()


def test_another_process_of_the_pod_supersedes(leases: Leases, start: Start) -> None:
    first = Joining(start("a"))
    record = leases.announced("a")
    second = Joining(start("a"))
    again = leases.announced("a", but=record.id)
    leases.publish(RoundRecord("uid", 1, "Broken"))  # makes both write again
    with pytest.raises(RendezvousStateError, match="another process of this pod"):
        first.result()
    assert second.waits()
    assert leases.announced("a", but=again.id).seen("uid") == 1


def test_the_exit_barrier_is_success(leases: Leases, start: Start) -> None:
    handlers, infos, record = two(leases, start)
    threads = [
        threading.Thread(
            target=store_util.barrier, args=(info.store, 2, "torchelastic/agent/terminal_state"), daemon=True
        )
        for info in infos
    ]
    threads[0].start()
    leases.wait_for(lambda: (r := leases.participant("a")) and r.state == "Succeeded", "a has succeeded")
    first = leases.participant("a")
    assert first is not None
    assert first.from_round == 1
    assert leases.annotation("a", names.FINISHED_ANNOTATION) == record.nonce
    assert threads[0].is_alive(), "the barrier waits for b"
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    leases.wait_for(lambda: (r := leases.participant("b")) and r.state == "Succeeded", "b has succeeded")
    lingering = threading.Thread(target=handlers[0].shutdown, daemon=True)
    lingering.start()
    lingering.join(25)
    assert not lingering.is_alive(), "all have passed: the leader need not linger"


def test_success_is_written_before_the_agent_of_a_run_without_operator_ends(
    leases: Leases, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else may say so: the others would take this pod for lost, and the run would have failed."""
    monkeypatch.setattr("elasticjob.agent.in_round.FLUSH_SECONDS", 0.0)
    handler = start("a", rounds="peers")
    joining = Joining(handler)
    form(leases, 1, "a")
    info = joining.result()
    leases.wait_for(lambda: (r := leases.report("a")) is not None and r.established, "the leader reports")
    leases.refused["a"] = Unavailable("try again later", 503)
    store_util.barrier(info.store, 1, "torchelastic/agent/terminal_state")
    ending = threading.Thread(target=handler.shutdown)
    ending.start()
    ending.join(0.5)
    leases.refused.clear()
    ending.join()
    assert (record := leases.participant("a")) is not None
    assert record.state == "Succeeded"


def test_the_exit_barrier_of_torch_2_4(leases: Leases, start: Start) -> None:
    """It waits by ``get`` where later versions ``wait``; here as there its passing is counted."""
    handlers, infos, _ = two(leases, start)

    def barrier(store: Any) -> None:
        if store.add("torchelastic/agent/terminal_state/num_members", 1) == 2:
            store.set("torchelastic/agent/terminal_state/last_member", "<val_ignored>")
        store.get("torchelastic/agent/terminal_state/last_member")

    threads = [threading.Thread(target=barrier, args=(info.store,), daemon=True) for info in infos]
    threads[0].start()
    leases.wait_for(lambda: (r := leases.participant("a")) and r.state == "Succeeded", "a has succeeded")
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    active = handlers[0]._rounds.active
    assert active is not None
    assert active.store.passed
    assert active.store.all_passed()


def test_the_exit_barrier_ends_with_the_round(leases: Leases, start: Start) -> None:
    _, infos, record = two(leases, start)
    raised: list[Exception] = []

    def enter() -> None:
        try:
            store_util.barrier(infos[0].store, 2, "torchelastic/agent/terminal_state")
        except (RuntimeError, StoreGone) as error:  # the latter if it has not yet come to the waiting
            raised.append(error)

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    leases.wait_for(lambda: (r := leases.participant("a")) and r.state == "Succeeded", "a has succeeded")
    leases.publish(broken(record, "PodLost"))
    thread.join(60)
    assert not thread.is_alive()
    assert "PodLost" in str(raised[0])


def test_sigterm_in_the_first_rendezvous_ends_the_process() -> None:
    """As PID 1 of a pod a process without a handler would never see it."""
    script = textwrap.dedent(
        """
        import sys
        from elasticjob.agent.handler import K8sRendezvousHandler
        from elasticjob.agent.settings import Settings
        from tests.unit.memory_api import Leases, MemoryApi
        leases = Leases()
        settings = Settings("ns", "job", pod="a", pod_uid="u")
        handler = K8sRendezvousHandler(settings, "run", lambda: MemoryApi(leases))
        import threading
        def say():
            leases.announced("a")
            print("joined", flush=True)
        threading.Thread(target=say).start()
        try:
            handler.next_rendezvous()
        finally:
            print(leases.participant("a").state, flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert process.stdout.read() == "Leaving\n"


@pytest.mark.parametrize("rounds", ["peers", "operator"])
def test_without_an_operator_one_that_gives_up_says_so(leases: Leases, start: Start, rounds: str) -> None:
    """``join_timeout`` is over: no other run waits for its pod, which may stay. An operator sees its end."""
    handler = start("a", rounds=rounds, join_timeout=0.1)
    with pytest.raises(RendezvousTimeoutError):
        handler.next_rendezvous()
    handler.shutdown()
    record = leases.participant("a")
    assert record is not None
    assert record.state == ("Leaving" if rounds == "peers" else "Joining")


def test_one_that_ends_on_a_signal_while_it_trains_says_so() -> None:
    """torch does not shut it down then."""
    script = textwrap.dedent(
        """
        import atexit
        from elasticjob.agent.handler import K8sRendezvousHandler
        from elasticjob.agent.settings import Settings
        from tests.unit.memory_api import Leases, MemoryApi
        leases = Leases()
        atexit.register(lambda: print(leases.participant("a").state, flush=True))
        settings = Settings("ns", "job", pod="a", pod_uid="u", rounds="peers")
        handler = K8sRendezvousHandler(settings, "run", lambda: MemoryApi(leases))
        handler._joining._announce(None)
        leases.announced("a")
        raise RuntimeError("a signal")
        """
    )
    process = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    assert (process.returncode, process.stdout) == (1, "Leaving\n")


# shows: workers do not stop after the end of a round
def test_what_is_left_of_the_workers_is_killed(leases: Leases, start: Start) -> None:
    """torch may take a minute to stop workers that ignore SIGTERM; the others wait for them."""
    handler = start("a", worker_stop=0.5)
    joining = Joining(handler, agent := ListedAgent())
    record = form(leases, 1, "a")
    joining.result()
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    agent.start(worker.pid)
    leases.publish(broken(record))
    assert worker.wait(timeout=60) == -signal.SIGKILL


def test_workers_of_the_next_round_are_left_alone(leases: Leases, start: Start) -> None:
    """torch has come back in time: any child of the agent now is a worker of the new round."""
    handler = start("a", worker_stop=0.5)
    joining = Joining(handler)
    record = form(leases, 1, "a")
    joining.result()
    others = set(threading.enumerate())
    leases.publish(broken(record))
    wait_for(lambda: handler.num_nodes_waiting(), 60, "the end is seen", interval=0.01)
    guards = wait_for(
        lambda: [t for t in set(threading.enumerate()) - others if isinstance(t, threading.Timer)],
        20,
        "the first round's guard",
        interval=0.01,
    )
    joining = Joining(handler)
    leases.announced("a", but=record.member_ids[0])
    form(leases, 2, "a")
    joining.result()
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        for guard in guards:
            guard.join(60)
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()
