"""Lines of logs end where their script ended them: not at "\r", a form feed or a separator of Unicode."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from devcluster.proxy import TcpProxy
from elasticjob_client.splitting import Splitter
from tests.unit.client.clients import Ask, Begun, until
from tests.unit.client.conftest import container
from tests.unit.client.made import ago
from tests.unit.client.server import PODS, Server
from tests.unit.client.test_away import end, follows, stamp
from tests.unit.client.test_watching import over

Begin = Callable[[Ask], Begun]
ODD = "10%\r20%\x0c30%\x8540%\u202850%"
LOG = f"{PODS}/mnist-0-0/log"


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_parts_of_any_size_give_the_same_lines(size: int) -> None:
    whole, splitter = f"{ODD}\nb\r\n\nlast ".encode() + b"\xff", Splitter()
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    found = [line for part in parts for line in splitter.lines(part)]
    assert [*found, *splitter.rest(), *splitter.rest()] == [ODD, "b", "", "last \ufffd"]


def ran(server: Server, started: float, text: str) -> None:
    running = container({"running": {"startedAt": ago(started)}})
    server.answers[PODS]["items"] = server.answers[PODS]["items"][:1]
    server.answers[PODS]["items"][0]["status"]["containerStatuses"] = [running]
    server.answers[LOG] = text


def test_a_round_has_no_pieces_of_the_lines_of_another(server: Server, run: Callable[..., Result]) -> None:
    ran(server, 2400, f"{ago(1000)} {ODD}\n{ago(100)} {ODD} too\n")
    found = run("logs", "mnist", "--round", "1", "--raw")
    assert found.stdout == f"{ODD}\n"
    only = run("logs", "mnist", "--round", "2", "-o", "json").stdout.removesuffix("\n").split("\n")
    assert [json.loads(line)["text"] for line in only] == [f"{ODD} too"]


def test_all_states_of_a_bar_are_shown_with_their_pod(server: Server, run: Callable[..., Result]) -> None:
    ran(server, 2400, "10%\r20%\n")
    assert run("logs", "mnist", "--all").stdout == "[0 mnist-0-0] 10%\n[0 mnist-0-0] 20%\n"


def test_no_piece_of_a_line_comes_twice_after_a_connection_broke(
    server: Server, gate: TcpProxy, begun: Begin
) -> None:
    server.answers[LOG] = f"{stamp(1)} {ODD}\n"
    call = begun(follows)
    until(lambda: call.got)
    server.answers[LOG] += f"{stamp(2)} b\n"
    server.held = ()
    end(server)
    gate.reset()
    assert [line.text for line in call.result()] == [ODD, "b"]


def test_a_change_is_read_whatever_its_messages_say(server: Server, gate: TcpProxy, begun: Begin) -> None:
    del gate
    done = over(2)
    done["metadata"]["labels"] = {"said": "a\x85b"}
    server.watches = [json.dumps({"type": "MODIFIED", "object": done}, ensure_ascii=False) + "\n"]

    def watches(jobs: Any) -> Any:
        return jobs.watch("mnist")

    assert begun(watches).result()[-1].ended
