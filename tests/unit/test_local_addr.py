"""``--local-addr``: what no other pod could connect to is refused at the start, with a sentence."""

from __future__ import annotations

import socket

import pytest

from elasticjob.agent.local_addr import (
    LocalAddrError,
    check_local_addr,
    check_own_address,
    find_own_address,
    read_local_addr,
)
from elasticjob.agent.settings import SettingsError, read_settings
from elasticjob.store.connect import connect
from elasticjob.store.errors import Unreachable


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("127.0.0.9", "127.0.0.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("trainer-0.trainer.ml.svc", "trainer-0.trainer.ml.svc"),
    ],
)
def test_addresses_and_names_are_taken(text: str, host: str) -> None:
    assert read_local_addr(text) == host
    assert read_settings("ns/job", {}, text).local_addr == host


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.0.0.5:29500", "which has a port"),
        ("[2001:db8::1]:29500", "which has a port"),
        ("trainer-0:29500", "which has a port"),
        ("300.1.1.1", "which is not a valid IP address"),
        ("10.0.0", "which is not a valid IP address"),
        ("2001:db8::1::2", "which is not a valid IP address"),
        ("0.0.0.0", "which no other pod can reach"),
        ("::", "which no other pod can reach"),
        ("224.0.0.1", "which no other pod can reach"),
        ("a b", "expected an address of this pod"),
        ("[10.0.0.5", "expected an address of this pod"),
    ],
)
def test_what_is_no_address_is_named(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as caught:
        read_settings("ns/job", {}, text)
    assert str(caught.value).startswith(f"--local-addr is {text!r}")
    assert "10.0.0.5 or 2001:db8::1, or a host name" in str(caught.value)


def no_interface(_name: str) -> bool:
    return False


def unknown(name: str) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, f"{name}: not known")


def busy(name: str) -> list[str]:
    raise socket.gaierror(socket.EAI_AGAIN, f"{name}: try again")


def test_a_network_interface_is_no_address() -> None:
    name = socket.if_nameindex()[0][1]
    with pytest.raises(LocalAddrError, match="is the name of a network interface"):
        check_local_addr(name)


def test_a_name_that_nobody_knows_is_named_as_that() -> None:
    with pytest.raises(LocalAddrError, match=r"this name cannot be resolved \(nowhere: not known\)"):
        check_local_addr("nowhere", unknown, no_interface)


@pytest.mark.parametrize("name", ["trainer..svc", f"{'a' * 64}.svc", ".svc"])
def test_a_name_that_cannot_be_one_is_named_as_that(name: str) -> None:
    """Python refuses to ask for it."""
    assert read_local_addr(name) == name
    with pytest.raises(LocalAddrError, match=r"this name cannot be resolved \(a part between dots is empty"):
        check_local_addr(name)


def test_a_name_by_which_others_would_reach_themselves() -> None:
    with pytest.raises(LocalAddrError, match=r"which is 127\.0\.0\.1 here: the other pods would connect"):
        check_local_addr("localhost", lambda _: ["127.0.0.1", "::1"], no_interface)
    check_local_addr("trainer-0", lambda _: ["127.0.0.1", "10.0.0.5"], no_interface)


def test_what_may_be_right_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    check_local_addr("trainer-0", busy, no_interface)
    assert "cannot be resolved at present" in caplog.text
    caplog.clear()
    check_local_addr("127.0.0.1")
    assert "only agents on this machine can reach this one" in caplog.text


def test_a_leader_whose_name_cannot_be_resolved_is_not_called_silent() -> None:
    with pytest.raises(Unreachable, match=r"the name nowhere\.invalid cannot be resolved"):
        connect("nowhere.invalid:29500")


@pytest.mark.parametrize(
    ("server", "asked"),
    [
        ("https://10.96.0.1:6443", ("10.96.0.1", 6443)),
        ("https://api.example.com", ("api.example.com", 443)),
        ("https://rancher.example.com/k8s/clusters/c-x", ("rancher.example.com", 443)),
        ("http://api.example.com", ("api.example.com", 80)),
        ("https://[fd00::1]", ("fd00::1", 443)),
    ],
)
def test_an_api_server_without_a_port_has_that_of_its_scheme(
    monkeypatch: pytest.MonkeyPatch, server: str, asked: tuple[str, int]
) -> None:
    def resolve(host: str, port: int, **_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, f"asked for {(host, port)}")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(LocalAddrError) as caught:
        find_own_address(server)
    assert f"asked for {asked}" in str(caught.value)


@pytest.mark.parametrize("server", ["https://nowhere.invalid:6443", "https://api:port"])
def test_where_no_way_leads_to_the_api_server_the_address_has_to_be_given(server: str) -> None:
    with pytest.raises(LocalAddrError, match=r"no way to .*: set --local-addr to one at which the other"):
        find_own_address(server)


@pytest.mark.parametrize("server", ["https://127.0.0.1:6443", "https://localhost"])
def test_an_address_by_which_others_would_reach_themselves_is_not_found(server: str) -> None:
    with pytest.raises(LocalAddrError, match="which no other pod can reach; expected an address") as caught:
        find_own_address(server)
    assert "--local-addr=$(POD_IP)" in str(caught.value)


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ("127.0.0.1", "from 127.0.0.1, which no other pod can reach"),
        ("::1", "from ::1, which no other pod can reach"),
        ("0.0.0.0", "which no other pod can reach"),
        ("", "from no address, which no other pod can reach"),
        ("10.96.0.1", "from 10.96.0.1, which is the API server's"),
    ],
)
def test_an_address_that_was_found_and_is_none_of_this_pod_s(own: str, why: str) -> None:
    """On a node whose kube-proxy uses IPVS, a pod with hostNetwork reaches a Service from its own address."""
    with pytest.raises(LocalAddrError) as caught:
        check_own_address(own, "https://10.96.0.1", ["10.96.0.1"])
    assert why in str(caught.value)
    assert "status.podIP" in str(caught.value)


@pytest.mark.parametrize("own", ["10.0.0.5", "fd00::5"])
def test_an_address_that_was_found_is_taken(own: str) -> None:
    check_own_address(own, "https://10.96.0.1", ["10.96.0.1"])
