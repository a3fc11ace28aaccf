"""Whether the rounds are an operator's or the pods' own, and what a run takes from its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import urllib3
from torch.distributed.elastic.rendezvous import RendezvousParameters

from elasticjob.agent.create import _identify
from elasticjob.agent.peer_mode import _limits, choose_rounds, make_peer_handler
from elasticjob.agent.settings import Settings, SettingsError, read_settings
from elasticjob.api.connection import Connection
from elasticjob.contract.limits import Limits
from elasticjob.contract.round_record import Phase, RoundRecord


def api_server(status: int) -> Connection:
    """One that answers this to whether it has ElasticJobs."""

    class Pool(urllib3.PoolManager):
        def request(self, *_: Any, **__: Any) -> urllib3.BaseHTTPResponse:
            return urllib3.HTTPResponse(b"{}", status=status)

    return Connection("https://127.0.0.1:6443", Pool(), dict)


def settings(**config: str) -> Settings:
    return read_settings("default/mnist", config, None)


@pytest.mark.parametrize(
    ("status", "config", "rounds"),
    [
        (404, {}, "peers"),
        (200, {}, "operator"),
        (503, {}, "operator"),
        (404, {"rounds": "operator"}, "operator"),
        (200, {"rounds": "peers"}, "peers"),
    ],
)
def test_the_pods_form_their_rounds_where_no_elasticjob_can_be(
    status: int, config: dict[str, str], rounds: str
) -> None:
    assert choose_rounds(settings(**config), api_server(status)).rounds == rounds


def test_a_pod_that_an_operator_has_made_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICJOB_JOB_UID", "1-2-3")
    assert choose_rounds(settings(), api_server(404)).rounds == "operator"


def test_a_pod_that_an_operator_has_made_forms_no_rounds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICJOB_JOB_UID", "1-2-3")
    with pytest.raises(SettingsError, match="rounds=peers is for pods without an operator"):
        choose_rounds(settings(rounds="peers"), api_server(200))


def test_the_last_call_of_an_elasticjob_is_not_an_agents_to_choose() -> None:
    assert choose_rounds(settings(last_call_timeout="7"), api_server(404)).last_call_timeout == 7
    with pytest.raises(SettingsError, match="last_call_timeout is for rounds=peers"):
        choose_rounds(settings(last_call_timeout="7"), api_server(200))


def test_the_limits_of_a_run_are_whole_seconds() -> None:
    """Otherwise no participant could read the record (0.1 and 7.5), and none is shorter than asked for."""
    asked = settings(
        last_call_timeout="0.1", establish_timeout="7.5", heartbeat_timeout="3.2", stall_timeout="9.9"
    )
    record = RoundRecord("run-1", 0, Phase.BROKEN.value, limits=_limits(asked))
    read = RoundRecord.parse(record.dump()).limits
    assert read == Limits(
        initial_last_call_timeout=1, establish_timeout=8, heartbeat_timeout=4, stall_timeout=10
    )


@pytest.mark.parametrize(("config", "seconds"), [({}, 600.0), ({"join_timeout": "7"}, 7.0)])
def test_a_run_that_does_not_begin_is_waited_for_as_long_as_torch_waits(
    config: dict[str, str], seconds: float
) -> None:
    """No operator judges it."""
    chosen = replace(settings(**config), pod="pod-0", local_addr="10.0.0.1")
    params = RendezvousParameters("k8s", "default/mnist", "run-1", 1, 1)
    handler = make_peer_handler(chosen, params, api_server(404), lambda: None)
    try:
        assert handler._parts.settings.join_timeout == seconds
    finally:
        handler.shutdown()


def test_a_value_of_rounds_that_is_none_of_two_is_refused() -> None:
    with pytest.raises(SettingsError, match="rounds is 'mine', expected peers or operator"):
        settings(rounds="mine")


@pytest.mark.parametrize("config", [{"rounds": "peers"}, {}], ids=["chosen", "found"])
@pytest.mark.parametrize(
    ("endpoint", "pod", "refused"),
    [
        ("other/mnist", ("pod-0", "uid-0"), True),
        ("own/mnist", ("pod-0", "uid-0"), False),
        ("mnist", ("pod-0", "uid-0"), False),
        ("other/mnist", ("", ""), False),
    ],
    ids=["other", "own", "none given", "not in a pod"],
)
def test_a_run_is_in_the_namespace_of_its_pods(
    endpoint: str, pod: tuple[str, str], refused: bool, config: dict[str, str]
) -> None:
    """In another one the garbage collector finds no owner of their Leases, and deletes them: the others take
    that for the ends of the pods."""
    here = replace(api_server(404), namespace="own", pod=pod)
    given = {"pod": "pod-0", "pod_uid": "uid-0", **config}
    chosen = choose_rounds(_identify(read_settings(endpoint, given, "10.0.0.1"), here), here)
    params = RendezvousParameters("k8s", endpoint, "run-1", 1, 1)
    if refused:
        said = "is other/mnist, but this pod is in namespace own, .* Use --rdzv-endpoint=mnist, or create"
        with pytest.raises(SettingsError, match=said):
            make_peer_handler(chosen, params, here, lambda: None)
    else:
        make_peer_handler(chosen, params, here, lambda: None).shutdown()


def test_an_agent_takes_no_address_that_only_its_own_pod_can_reach() -> None:
    """The server is at 127.0.0.1: a tunnel, a proxy, or a cluster on one machine."""
    chosen = replace(settings(), pod="pod-0")
    params = RendezvousParameters("k8s", "default/mnist", "run-1", 1, 1)
    with pytest.raises(SettingsError, match=r"from 127\.0\.0\.1, which no other pod can reach"):
        make_peer_handler(chosen, params, api_server(404), lambda: None)
