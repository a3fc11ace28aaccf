"""The synchronous client is generated from the asynchronous one, and is up to date."""

from __future__ import annotations

from client import unasync


def test_the_synchronous_client_is_up_to_date() -> None:
    there = {path.name: path.read_text() for path in unasync.GENERATED.glob("*.py")}
    assert there == unasync.generated(), "run: python client/unasync.py"
