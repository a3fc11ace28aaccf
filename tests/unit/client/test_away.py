"""A server that is away for a while, and connections that break: who follows or waits goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devcluster.proxy import TcpProxy
from elasticjob_client import Jobs, NoServer, NotFound
from tests.unit.client.clients import Ask, Begun, until
from tests.unit.client.conftest import container
from tests.unit.client.made import NOW, ago
from tests.unit.client.server import JOBS, PODS, Server, refusal
from tests.unit.client.test_watching import over

BACK = ["the API server answers again"]
GONE = refusal(404, "NotFound", 'elasticjobs.elasticjob.dev "mnist" not found', "mnist")
LOG = f"{PODS}/mnist-0-0/log"
Begin = Callable[[Ask], Begun]


def waits(jobs: Any) -> Any:
    return jobs.wait("mnist")


def watches(jobs: Any) -> Any:
    return jobs.watch("mnist")


def follows(jobs: Any) -> Any:
    return jobs.logs("mnist", follow=True)


def asked(server: Server, text: str = JOBS) -> list[str]:
    return [path for _, path, _ in list(server.asked) if text in path]


def end(server: Server) -> None:
    """The job is over, and so is its pod."""
    ended = {"terminated": {"exitCode": 0, "startedAt": ago(900), "finishedAt": ago(1)}}
    server.answers[PODS]["items"][0]["status"]["containerStatuses"] = [container(ended)]
    server.put(over(2))


def begun_well(server: Server) -> bool:
    """What has been asked twice has been answered once: from now on, a failure is not the first request's."""
    return len(asked(server)) >= 2


@pytest.mark.parametrize("ask", [waits, watches])
def test_a_server_that_comes_back(server: Server, gate: TcpProxy, begun: Begin, ask: Ask) -> None:
    call = begun(ask)
    until(lambda: begun_well(server))
    gate.refuse()
    until(lambda: call.said)
    end(server)
    gate.restore()
    found = call.result()
    last = found[-1] if isinstance(found, list) else found
    assert last.status.terminal_state == "Complete"
    assert len(call.said) == 2, call.said
    assert "does not answer" in call.said[0]
    assert call.said[0].endswith("; trying again for 5 minutes")
    assert call.said[1:] == BACK


def test_a_server_that_is_back_is_said_to_be_so_before_anything_changes(
    server: Server, gate: TcpProxy, begun: Begin
) -> None:
    server.watches = [""] * 4
    call = begun(watches)
    until(lambda: begun_well(server))
    gate.refuse()
    until(lambda: call.said)
    gate.restore()
    until(lambda: call.said[1:] == BACK)
    end(server)
    gate.reset()
    assert call.result()[-1].ended


def test_a_server_that_stays_away(
    server: Server, gate: TcpProxy, begun: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob_client.patience.AWAY_SECONDS", 0.3)
    call = begun(waits)
    until(lambda: begun_well(server))
    gate.refuse()
    with pytest.raises(NoServer, match="does not answer"):
        call.result()


def test_the_time_of_a_wait_is_over_while_the_server_is_away(
    server: Server, gate: TcpProxy, begun: Begin
) -> None:
    call = begun(lambda jobs: jobs.wait("mnist", timeout_seconds=4))
    until(lambda: begun_well(server))
    gate.refuse()
    with pytest.raises(
        TimeoutError, match=r"is not Complete yet; it is Training.*as last seen: the API server"
    ):
        call.result()


def stamp(seconds: int) -> str:
    return ago(-seconds).replace("Z", ".123456789Z")


def test_a_log_goes_on_where_its_connection_broke(server: Server, gate: TcpProxy, begun: Begin) -> None:
    server.answers[LOG] = f"{stamp(1)} a\n{stamp(2)} b\n{stamp(2)} b\n"
    call = begun(follows)
    until(lambda: len(call.got) == 3)
    server.answers[LOG] += f"{stamp(2)} c\n{stamp(3)} d\n"
    server.held = ()
    gate.refuse()
    until(lambda: call.said)
    end(server)
    gate.restore()
    assert [line.text for line in call.result()] == ["a", "b", "b", "c", "d"]
    followed = asked(server, "follow=true")
    assert "sinceTime" not in followed[0]
    assert f"sinceTime={NOW:%Y-%m-%dT%H}%3A00%3A02Z" in followed[-1]
    assert call.said[-1:] == BACK


def test_a_log_without_times_goes_on_too(server: Server, gate: TcpProxy, begun: Begin) -> None:
    server.no_times, server.held = True, ("timestamps=false",)
    server.answers[LOG] = "a\n"
    call = begun(follows)
    until(lambda: len(call.got) == 1)
    server.answers[LOG] = "b\n"
    gate.reset()
    until(lambda: len(call.got) == 2)
    end(server)
    server.held = ()
    server.answers[LOG] = ""
    gate.reset()
    assert [line.text for line in call.result()] == ["a", "b"]


def test_a_log_is_not_asked_for_twice_if_it_is_refused_for_another_reason(
    server: Server, gate: TcpProxy, begun: Begin
) -> None:
    del gate
    server.held = ("watch=true",)
    server.answers[LOG] = refusal(400, "BadRequest", "the container waits to start", "mnist-0-0")
    call = begun(follows)
    until(lambda: call.said)
    end(server)
    assert call.result() == []
    assert call.said == ["cannot read the log of pod mnist-0-0: the container waits to start"]
    assert len(asked(server, "/log")) == 1


@pytest.mark.parametrize("ask", [waits, watches, follows])
def test_a_job_that_is_deleted_meanwhile(server: Server, gate: TcpProxy, begun: Begin, ask: Ask) -> None:
    call = begun(ask)
    until(lambda: begun_well(server))
    if ask is follows:
        until(lambda: asked(server, "follow=true"))
    gate.refuse()
    until(lambda: call.said)
    server.answers[f"{JOBS}/mnist"] = GONE
    server.answers[JOBS]["items"] = []
    gate.restore()
    with pytest.raises(NotFound, match=r"^ElasticJob research/mnist has been deleted$"):
        call.result()


def test_many_logs_at_once(server: Server, gate: TcpProxy) -> None:
    del gate
    server.answers[LOG] = f"{stamp(1)} a\n"
    with Jobs() as jobs:
        several = [jobs.logs("mnist", follow=True) for _ in range(110)]
        assert {next(lines).text for lines in several} == {"a"}
        assert jobs.get("mnist")
        for lines in several:
            lines.close()  # type: ignore[attr-defined]
