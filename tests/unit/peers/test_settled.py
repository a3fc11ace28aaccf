"""The two annotations of a round Lease: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob.contract.fields import MAX_ID, MAX_ROUND, RecordError
from elasticjob.contract.round_record import MAX_ROUND_BYTES
from elasticjob.peers.records import MAX_NAME, MAX_STATE_BYTES, PeerRecord, RunState
from elasticjob.peers.run import MAX_PEERS
from elasticjob.peers.settled import Settled, begun_after, leave_out, made_again, number_of
from elasticjob.peers.sight import MOST_MISSED
from elasticjob.rounds.reports import MAX_REPORTS
from elasticjob.rounds.state import Member, RoundState, UnreachableReport
from tests.unit.peers.table import BEGAN, Table


def written(settled: Settled) -> tuple[str, str]:
    return settled.record("waiting").dump(), settled.rest().dump()


def trained() -> Settled:
    table = Table()
    table.train("pod-0", "pod-1", "pod-2")
    return table.settled


def test_a_run_is_read_as_it_was_written() -> None:
    stopped = replace(trained(), unfinished=(("run-0", 7), ("run-00", MAX_ROUND)), early_ends=3, best_step=7)
    for settled in (Table().settled, trained(), replace(trained(), unsure=True), stopped):
        assert Settled.parse(*written(settled)) == settled


def test_no_number_is_written_that_none_can_follow() -> None:
    """P7: nobody could read what follows, its writer included."""
    last = replace(trained(), state=replace(trained().state, phase="Broken"), unsure=True)
    for seen in (9, MAX_ROUND - 1, MAX_ROUND, 2**53 - 1):
        left = leave_out(last, seen)
        assert Settled.parse(*written(left)).state.number == min(seen + 1, MAX_ROUND)
        begun = begun_after(Table().settled, seen)
        assert Settled.parse(*written(begun)) == begun
    beyond = replace(last, state=replace(last.state, number=MAX_ROUND + 1))
    with pytest.raises(RecordError, match="round"):
        Settled.parse(*written(beyond))
    assert number_of(*written(beyond)) == 0


@pytest.mark.parametrize("unsure", [False, True])
def test_what_a_participant_claims_to_have_seen_is_bounded(unsure: bool) -> None:
    """P7: another one has written into its Lease. Beside a record that is sure it is left out of the first
    round; where rounds may have been missed it is waited for, as one whose Lease can't be read."""
    for claim in (MOST_MISSED + 2, 2**53 - 1):
        table = Table(last_call=1)
        table.settled = replace(table.settled, unsure=unsure)
        table.join("pod-0", "pod-1", "pod-2")
        honest = table.peers["pod-2"].record
        table.peers["pod-2"] = replace(table.peers["pod-2"], record=replace(honest, seen_round=claim))
        for _ in range(5):
            table.look(after=1.0)
        assert (table.number, table.settled.state.active) == ((0, False) if unsure else (1, True))
        assert "pod-2" not in table.members
        assert ("pod-2 may be in a round" in table.last.waiting) == unsure


def test_the_largest_run_fits_into_a_lease() -> None:
    """128 members with the longest names, all of whom were reported (I13)."""
    members = tuple(
        Member(f"{rank:032}", f"{rank:0{MAX_NAME}}", f"{rank:0{MAX_ID}}", rank, "Unreachable")
        for rank in range(MAX_PEERS)
    )
    names = tuple(m.name for m in members)
    state = RoundState(
        2**40,
        "Active",
        "n" * 32,
        members,
        "LeaderUnreachable",
        BEGAN,
        BEGAN,
        unarrived=names,
        ineligible_leaders=names,
        unreachable_reports=tuple(UnreachableReport(n, BEGAN) for n in names[:MAX_REPORTS]),
    )
    settled = Settled("r" * MAX_ID, 1, MAX_PEERS, state=state, endpoint="10.0.0.1:1", message="m" * 2000)
    record, rest = written(settled)
    assert len(record) < MAX_ROUND_BYTES
    assert len(rest) < MAX_STATE_BYTES
    assert Settled.parse(record, rest) == settled


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"nonce": "another"}, "of another round than the record"),
        ({"round": 9}, "of another round than the record"),
        ({"members": []}, "not those of the record"),
        ({"members": [["a"]]}, "not a list of at most 128 rows of 4 words"),
        ({"members": [["i", "n", "k", 1]] * 3}, "not a list of at most 128 rows"),
        ({"members": "all"}, "not a list of at most 128 rows"),
        ({"members": ["i", "n", "k", "s"]}, "not a list of at most 128 rows"),
        ({"members": [["i", "n", "k", ""]] * 3}, "not a list of at most 128 rows"),
        ({"members": [["i", "n n", "k", "s"]] * 3}, "not a list of at most 128 rows"),
        ({"members": [["i", "n", "k", "\u202e"]] * 3}, "not a list of at most 128 rows"),
        ({"members": [["i", "n", "k", "s" * 33]] * 3}, "not a list of at most 128 rows"),
        ({"start": "yesterday"}, "expected a time with its zone"),
        ({"start": "2026-01-01T00:00:00"}, "expected a time with its zone"),
        ({"unreachableReports": [["a", "2026-01-01T00:00:00"]]}, "expected a time with its zone"),
        ({"minimum": 3, "maximum": 2}, "minimum is greater than maximum"),
        ({"maximum": 129}, "expected a whole number from 1 to 128"),
        ({"unfinished": [["run-0", "-1"]]}, "not a list of ids, each with the number of a round"),
        ({"unfinished": [["run-0", str(MAX_ROUND + 1)]]}, "not a list of ids"),
        ({"unfinished": [["run-0"]]}, "not a list of at most 8 rows of 2 words"),
        ({"earlyEnds": -1}, "expected a whole number"),
    ],
)
def test_a_state_that_no_coordinator_writes_is_refused(changes: dict[str, Any], sentence: str) -> None:
    record, rest = written(trained())
    with pytest.raises(RecordError, match=sentence):
        Settled.parse(record, json.dumps({**json.loads(rest), **changes}))


def test_a_phase_of_an_operator_is_refused() -> None:
    record, rest = written(trained())
    with pytest.raises(RecordError, match="phase 'Draining' is not one of a run"):
        Settled.parse(record.replace('"Active"', '"Draining"'), rest)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    *json.loads(trained().rest().dump()),
    *(
        "unarrived",
        "ineligibleLeaders",
        "unreachableReports",
        "unsure",
        "former",
        "unfinished",
        "start",
        "established",
    ),
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.text(max_size=40))
def test_anything_may_stand_in_the_annotations(changes: dict[str, Any], text: str) -> None:
    """P7: RecordError is all that may come of it."""
    record, rest = written(trained())
    for first, second in (
        (record, json.dumps({**json.loads(rest), **changes})),
        (record, text),
        (text, rest),
        (json.dumps({**json.loads(record), **changes}), rest),
    ):
        for parse in (
            lambda a, b: Settled.parse(a, b),
            lambda _, b: PeerRecord.parse(b),
            lambda _, b: RunState.parse(b),
        ):
            try:
                parse(first, second)
            except RecordError:
                continue


def test_a_lease_that_is_made_again_goes_on() -> None:
    active, closed = trained(), replace(trained(), state=replace(trained().state, phase="Closed"))
    broken = replace(active, state=replace(active.state, phase="Broken"))
    for last in (active, broken, closed):
        assert made_again(last, sure=True) == last
    assert made_again(active, sure=False) == replace(active, unsure=True)
    assert made_again(closed, sure=False) == closed
    again = made_again(broken, sure=False)
    assert again == replace(broken, unsure=True)
    for seen, number in ((0, 2), (1, 2), (4, 5)):
        without = leave_out(again, seen)
        assert (without.state.number, without.state.members, without.left_out) == (number, (), True)
        assert without.order > broken.order
        assert leave_out(without, 99) == without
        assert made_again(without, sure=False).left_out is False, "another may have published a round since"
    assert leave_out(broken, 4) == broken
