"""What differs between versions of torch. The same on real ones: ``make matrix``."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry

from elasticjob.agent.torch_version import release, shortfall, workers_may_share_agent_store
from elasticjob.contract import names
from elasticjob.entry import create_handler, get_handler
from elasticjob.store.connect import connect
from elasticjob.store.held_port import HeldPort
from elasticjob.store.server import has_libuv, serve, use_libuv


def test_the_numbers_of_a_version() -> None:
    assert release("2.4.1+cu121") == (2, 4)
    assert release("2.10.0a0+git1234") == (2, 10)
    assert release("of my own") == (0, 0)


def test_workers_share_the_agents_store_from_2_6_on() -> None:
    assert [
        v for v in ("2.4.0", "2.5.1", "2.6.0", "2.10.0", "3.0.0") if workers_may_share_agent_store(v)
    ] == [
        "2.6.0",
        "2.10.0",
        "3.0.0",
    ]


def test_a_torch_that_is_too_old_is_told_what_is_needed() -> None:
    assert shortfall("2.4.0", has_rendezvous_info=True) == ""
    text = shortfall("2.3.1+cu121", has_rendezvous_info=False)
    assert "torch 2.4 or later" in text, "what was expected"
    assert "found torch 2.3.1+cu121" in text


def test_the_creator_says_it_before_it_imports_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.3.1")
    monkeypatch.delattr(rendezvous, "RendezvousInfo")
    with pytest.raises(RuntimeError, match=r"needs torch 2\.4 or later, but found torch 2\.3\.1"):
        create_handler(RendezvousParameters(names.BACKEND, "job", "run", 1, 1))


def test_elasticjob_run_registers_what_torch_has_found_by_itself() -> None:
    """No ValueError for a second registration: the entry point gives the very same function."""
    if release(str(torch.__version__)) >= (2, 5):
        assert rendezvous_handler_registry._registry[names.BACKEND] is create_handler
    rendezvous_handler_registry.register(names.BACKEND, create_handler)
    assert get_handler() is create_handler


def test_elasticjob_run_is_torchrun(tmp_path: Path) -> None:
    """Its flags, its environment for the workers, its exit code; and the backend is known to it."""
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print('rank', os.environ['RANK'], sys.argv[1:]); sys.exit(3)")
    command = [sys.executable, "-m", "elasticjob.run"]
    alone = subprocess.run(
        [*command, "--standalone", "--nproc-per-node=1", str(script), "--flag", "of the script"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "rank 0 ['--flag', 'of the script']" in alone.stdout
    assert alone.returncode == 1
    assert "exitcode  : 3" in alone.stderr
    wrong = subprocess.run(
        [*command, "--rdzv-backend=k8s", "--rdzv-endpoint=host:29400", str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert wrong.returncode == 1
    assert "expected [NAMESPACE/]NAME of an ElasticJob" in wrong.stderr


def _store(port: int, **options: bool) -> TCPStore:
    """As global rank 0's worker makes it, without waiting for the others."""
    return TCPStore(
        "127.0.0.1",
        port,
        2,
        True,
        timedelta(seconds=20),
        wait_for_workers=False,
        multi_tenant=True,
        **options,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="held on Linux only")
@pytest.mark.parametrize("libuv", [True, False])
def test_a_held_port_is_for_a_store_alone(libuv: bool) -> None:
    held = HeldPort()
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1")):
        with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
            other.bind((host, held.port))
    served = _store(held.port, use_libuv=libuv)
    served.set("who", "rank 0")
    client = TCPStore("127.0.0.1", held.port, 2, False, timedelta(seconds=20), use_libuv=libuv)
    assert client.get("who") == b"rank 0"


@pytest.fixture
def _asked_anew() -> Iterator[None]:
    has_libuv.cache_clear()
    yield
    has_libuv.cache_clear()


@pytest.mark.usefixtures("_asked_anew")
@pytest.mark.parametrize("word", ["build", "built"])  # torch 2.4 and later ones
def test_a_torch_without_libuv_serves_and_connects(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USE_LIBUV", raising=False)

    def store(host: str, port: int, use_libuv: bool = True, **options: Any) -> TCPStore:
        if use_libuv:
            raise RuntimeError(f"use_libuv was requested but PyTorch was {word} without libuv support")
        return TCPStore(host, port, use_libuv=False, **options)

    monkeypatch.setattr("elasticjob.store.server.TCPStore", store)
    monkeypatch.setattr("elasticjob.store.connect.TCPStore", store)
    server = serve()
    server.set("who", "rank 0")
    assert connect(f"127.0.0.1:{server.port}").get("who") == b"rank 0"
    assert not has_libuv()


@pytest.mark.usefixtures("_asked_anew")
def test_another_error_says_nothing_of_libuv(monkeypatch: pytest.MonkeyPatch) -> None:
    def store(*_: Any, **__: Any) -> TCPStore:
        raise RuntimeError("Too many open files")

    monkeypatch.setattr("elasticjob.store.server.TCPStore", store)
    assert has_libuv()


@pytest.mark.parametrize("value", ["0", "1", None])
def test_stores_use_libuv_as_torchs_own_do(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is None:
        monkeypatch.delenv("USE_LIBUV", raising=False)
    else:
        monkeypatch.setenv("USE_LIBUV", value)
    assert use_libuv() == (value != "0")
    server = serve()
    assert server.libuvBackend == (value != "0")  # type: ignore[attr-defined]


def test_two_held_ports_differ() -> None:
    first, second = HeldPort(), HeldPort()
    assert first.port != second.port


@pytest.mark.skipif(sys.platform != "linux", reason="held on Linux only")
def test_who_comes_first_to_a_held_port_all_the_same_makes_the_worker_fail() -> None:
    """A server of that very number that sets SO_REUSEADDR: an error at once, no store shared by mistake."""
    held = HeldPort()
    with socket.create_server(("", held.port)), pytest.raises(RuntimeError, match=r"EADDRINUSE|in use"):
        _store(held.port)
