"""The proxy that can be cut, refused and reset."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from devcluster.proxy import TcpProxy


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection:
                while data := _received(connection):
                    connection.sendall(data)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=[connection], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""


def connected(proxy: TcpProxy, timeout: float = 10.0) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout)


def test_proxy_passes_a_large_transfer_and_its_end(echo: tuple[str, int]) -> None:
    sent = os.urandom(20_000_000)
    with TcpProxy(echo) as proxy, connected(proxy) as client:

        def send() -> None:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)

        threading.Thread(target=send).start()
        received = bytearray()
        while data := client.recv(1 << 16):
            received += data
        assert received == sent


def test_proxy_cut_holds_and_restore_delivers(echo: tuple[str, int]) -> None:
    with TcpProxy(echo) as proxy, connected(proxy) as client:
        client.sendall(b"before")
        assert client.recv(100) == b"before"
        proxy.cut()
        client.sendall(b"held")
        with connected(proxy) as late:
            late.sendall(b"late")
            for silent in (client, late):
                silent.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    silent.recv(100)
            proxy.restore()
            for talking, expected in ((client, b"held"), (late, b"late")):
                talking.settimeout(10)
                assert talking.recv(100) == expected


def test_proxy_refuses_and_resets(echo: tuple[str, int]) -> None:
    with TcpProxy(echo) as proxy:
        with connected(proxy) as client:
            client.sendall(b"x")
            assert client.recv(100) == b"x"
            proxy.refuse()
            with pytest.raises(ConnectionResetError):
                client.recv(100)
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
        proxy.restore()
        with connected(proxy) as client:
            client.sendall(b"y")
            assert client.recv(100) == b"y"
            proxy.reset()
            with pytest.raises(ConnectionResetError):
                client.recv(100)
