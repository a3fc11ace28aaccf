"""The claims of a directory of checkpoints: between two calls of a process something happens."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from elasticjob.checkpoint import records
from elasticjob.checkpoint.beats import Beats
from elasticjob.checkpoint.claims import BEAT_SECONDS
from elasticjob.checkpoint.directory import RESERVE, Directory
from elasticjob.checkpoint.errors import CheckpointError, StaleRoundError
from elasticjob.checkpoint.records import Claim, Name, Token
from tests.checkpoints.memory import PATH, Memory, directory, save

CAPACITY = 200_000


def renews(memory: Memory, holder: Directory) -> Callable[[str, str], None]:
    """What comes before each call: ``holder`` renews its claim whenever another process waits."""

    def before(what: str, _: str) -> None:
        if what == "sleep":
            memory.before = lambda *_: None
            holder.beat()
            memory.before = before

    return before


def test_a_renewal_leaves_what_is_set_aside_for_the_next_round() -> None:
    memory = Memory(CAPACITY)
    first = directory(memory)
    first.begin(1)
    first.tidy()
    save(memory, first, 10)
    memory.write(f"{PATH}/{Name(first.claim.token, 20)}/__0_0.distcp", b"x" * memory.free())
    for renew in (first.beat, first.end):
        with pytest.raises(OSError, match="No space left") as raised:
            renew()
        assert raised.value.errno == errno.ENOSPC
    assert RESERVE in memory.names(PATH)

    second = directory(memory)
    memory.write("log of another", b"x" * memory.free())
    second.begin(2)
    second.tidy()
    assert [name.step for name, _ in second.candidates()] == [10]
    assert RESERVE in memory.names(PATH)


def test_a_claim_that_cannot_be_renewed_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(CAPACITY)
    held = directory(memory)
    held.begin(1)
    beats = Beats(held, clock=lambda: memory.now)
    memory.write("log of another", b"x" * memory.free())
    for _ in range(10):
        memory.sleep(BEAT_SECONDS)
        assert beats.renew()
    (said,) = caplog.messages
    assert re.match(r"round-g0001-r000001-\w+\.json could not be renewed for 25 s, so another job", said)
    assert "No space left" in said
    del memory.files["log of another"]
    caplog.clear()
    assert beats.renew()
    assert caplog.messages == []


def test_no_other_job_begins_while_one_removes_much_at_its_beginning() -> None:
    memory = Memory()
    first = directory(memory)
    first.begin(1)
    half = Name(first.claim.token, 20)
    for rank in range(20):
        memory.write(f"{PATH}/{half}/__{rank}_0.distcp", b"x")
    second, newcomer = directory(memory), directory(memory, "B")
    begun, renewed, refused = False, 0.0, False

    def slow(what: str, _: str) -> None:
        """A removal takes five seconds. Once a round has begun, another thread renews its claim."""
        nonlocal renewed, refused
        if what == "remove":
            memory.now += 5
            if not refused:
                with pytest.raises(StaleRoundError, match="in use by round 2 of job A"):
                    newcomer.begin(1)
                refused = True
        if what == "sleep" and begun and memory.now - renewed > BEAT_SECONDS:
            renewed = memory.now
            second.beat()

    memory.before = slow
    second.begin(2)
    begun = True
    second.tidy()
    assert memory.now > 100
    assert refused
    assert not memory.sizes(f"{PATH}/{half}")
    second.stop_if_superseded()


class Torn(Memory):
    """A storage whose put empties the file first, as sftp's does."""

    def put(self, path: str, content: bytes) -> None:
        self.write(path, b"")
        self.before("torn", path)
        self.write(path, content)


def test_a_claim_that_is_being_written_is_read_again() -> None:
    memory = Torn()
    held = directory(memory)
    held.begin(1)
    file = f"{PATH}/{held.claim.file}"
    refused = False

    def renewed(what: str, _: str) -> None:
        """What is written goes on while the reader waits; every five seconds it is renewed."""
        if what == "sleep":
            memory.files[file] = replace(held.claim, beat=int(memory.now // BEAT_SECONDS)).to_json()

    def look(what: str, _: str) -> None:
        """While the claim is half-written, another thread of its holder looks, and a newcomer."""
        nonlocal refused
        if what != "torn":
            return
        memory.before = renewed
        held.stop_if_superseded()
        assert memory.now == 0, "its holder knows it"
        with pytest.raises(StaleRoundError, match="in use by round 1 of job A"):
            directory(memory, "B").begin(1)
        refused = True

    memory.before = look
    assert held.beat()
    assert refused


def test_a_claim_that_stays_unreadable_is_an_error() -> None:
    memory = Memory()
    held = directory(memory)
    held.begin(1)
    memory.files[f"{PATH}/{held.claim.file}"] = b""
    with pytest.raises(CheckpointError, match="Remove it if no job uses the folder"):
        directory(memory).begin(2)
    assert memory.now >= 1
    held.stop_if_superseded()


@pytest.mark.parametrize(("slow", "quick"), [("A", "B"), ("B", "A")])
@pytest.mark.parametrize("number", [1, 2])
def test_what_a_newcomer_is_writing_is_left_to_it(slow: str, quick: str, number: int) -> None:
    memory = Memory()
    late, other = directory(memory, slow), directory(memory, quick)

    def begins(what: str, _: str) -> None:
        """The other one begins between the two steps in which a claim is written."""
        if what == "rename":
            memory.before = lambda *_: None
            other.begin(number)
            other.tidy()
            memory.before = renews(memory, other)

    memory.before = begins
    with pytest.raises(StaleRoundError, match=f"in use by round {number} of job {quick}"):
        late.begin(1)
    other.stop_if_superseded()


def test_what_a_kill_has_left_of_a_claim_is_removed_by_the_next_round() -> None:
    memory = Memory()
    first = directory(memory)
    first.begin(1)
    left = [f"{PATH}/{first.claim.file}.ab.tmp", f"{PATH}/{RESERVE}.ab.tmp"]
    second = directory(memory)
    for path in left:
        memory.write(path, b"")
    second.begin(2)
    mine = f"{PATH}/{second.claim.file}.ab.tmp"
    memory.write(mine, b"")
    second.tidy()
    assert [path for path in memory.files if path.endswith(".tmp")] == [mine], "it may be being written"


def test_a_round_that_was_about_to_begin_when_a_newcomer_came_is_seen() -> None:
    memory = Memory()
    directory(memory).begin(1)
    second = directory(memory)
    refused = False

    def comes(what: str, _: str) -> None:
        """The newcomer sees the claim of the next round before that says what counts."""
        nonlocal refused
        if what == "names" and f"{PATH}/{second_file}" in memory.files:
            memory.before = goes_on
            with pytest.raises(StaleRoundError, match="in use by round 2 of job A"):
                directory(memory, "B").begin(1)
            refused = True

    def goes_on(what: str, _: str) -> None:
        """The next round does, while the newcomer watches the claim of the last one."""
        if what == "sleep":
            beat = int(memory.now // BEAT_SECONDS)
            claim = Claim(Token(1, 2), records.holder_of("A", "", "a-0", ""), frozenset(), beat)
            memory.files[f"{PATH}/{second_file}"] = claim.to_json()

    second_file = Claim(Token(1, 2), records.holder_of("A", "", "", "")).file
    memory.before = comes
    second.begin(2)
    assert refused


def test_of_a_next_round_and_a_newcomer_that_begin_at_once_only_one_does() -> None:
    memory = Memory()
    first = directory(memory)
    first.begin(1)
    first.end()
    second = directory(memory)

    def begins(what: str, _: str) -> None:
        """The newcomer has seen that the last round has ended, and writes its claim."""
        if what == "put":
            memory.before = renews(memory, second)
            second.begin(2)

    memory.before = begins
    with pytest.raises(StaleRoundError, match="in use by round 2 of job A"):
        directory(memory, "B").begin(1)
    second.stop_if_superseded()
