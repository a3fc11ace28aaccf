"""A client of torch's TCPStore for an event loop: the wire protocol's few operations that a barrier needs.

torch's own client blocks its thread, so that a thousand participants in one process would be a thousand
threads. The bytes on the wire are those that torch's client sends: one byte that says what is wanted, then
numbers in the machine's order and strings behind their lengths of 8 bytes; torch's client puts a slash before
every key.
"""

from __future__ import annotations

import asyncio
import socket
import struct

_VALIDATE, _SET, _COMPARE_SET, _GET, _ADD, _WAIT, _PING = 0, 1, 2, 3, 4, 6, 13
_MAGIC = 0x3C85F7CE
_STOP_WAITING = 0
_MAX_VALUE_BYTES = 1 << 20


class StoreError(Exception):
    """The server is gone, or says what this client does not understand."""


class StoreClient:
    """One connection to one server; every key gets `prefix` and a slash, as a PrefixStore does it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prefix: str) -> None:
        self._reader = reader
        self._writer = writer
        self._prefix = prefix

    @staticmethod
    async def connect(host: str, port: int, prefix: str, timeout: float) -> StoreClient:
        """Connect and greet. Raises OSError or StoreError if no server answers within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(host, port)
                client = StoreClient(reader, writer, prefix)
                nonce = struct.pack("=I", id(client) & 0xFFFFFFFF)
                client._send(_VALIDATE, struct.pack("=I", _MAGIC))
                client._send(_PING, nonce)
                if await client._read(4) != nonce:
                    raise StoreError(f"{host}:{port} does not answer like a TCPStore")
        except TimeoutError:
            raise StoreError(f"{host}:{port} does not answer") from None
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def set(self, key: str, value: str) -> None:
        """Set a key; the server does not answer."""
        self._send(_SET, self._key(key) + _text(value.encode()))

    async def add(self, key: str, amount: int) -> int:
        """Add to a counter; returns its new value."""
        self._send(_ADD, self._key(key) + struct.pack("=q", amount))
        number: int = struct.unpack("=q", await self._read(8))[0]
        return number

    async def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a key if its value is ``expected``; the value after that, ``expected`` if it has none."""
        texts = (self._key(key), _text(expected.encode()), _text(desired.encode()))
        self._send(_COMPARE_SET, b"".join(texts))
        return await self._value()

    async def wait(self, key: str) -> None:
        """Wait until the key is there, without limit."""
        self._send(_WAIT, struct.pack("=Q", 1) + self._key(key))
        (answer,) = await self._read(1)
        if answer != _STOP_WAITING:
            raise StoreError(f"the store answered {answer} to a wait")

    async def get(self, key: str) -> bytes:
        """The value of a key that is there; torch's client waits for it first, and so does this one."""
        await self.wait(key)
        self._send(_GET, self._key(key))
        return await self._value()

    async def _value(self) -> bytes:
        (length,) = struct.unpack("=Q", await self._read(8))
        if length > _MAX_VALUE_BYTES:
            raise StoreError(f"the store announced a value of {length} bytes")
        return await self._read(length)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    def _key(self, key: str) -> bytes:
        return _text(f"/{self._prefix}/{key}".encode())

    def _send(self, what: int, payload: bytes) -> None:
        self._writer.write(bytes([what]) + payload)

    async def _read(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise StoreError(f"the store is gone: {error}") from None


def _text(data: bytes) -> bytes:
    return struct.pack("=Q", len(data)) + data
