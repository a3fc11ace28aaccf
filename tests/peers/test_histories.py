"""Some histories of runs without operator; ``python -m tests.peers`` plays any number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticjob.peers.pacing import MOST_EARLY_ENDS
from tests.peers.__main__ import check
from tests.peers.history import History, play
from tests.peers.mutations import MUTATIONS, Mutation
from tests.rules import without


@pytest.mark.parametrize("seed", range(20))
def test_no_rule_is_broken(seed: int) -> None:
    play(seed)


FOUND = {
    112: "two that could not reach each other took the place of coordinator from each other for ever",
    140: "one whose Lease was deleted by hand was waited for although it had announced itself again",
    415: "a Lease that a user deleted was the proof that its pod had ended, although the pod was seen",
    1810: "a watch that hung was the proof that a leader had not reported its round established",
    934: "a round Lease of which half could be read was begun again below its number",
    200166: "a pod of the next run made a round Lease that a user had deleted, and trained beside the run",
    201071: "the next run took the round Lease, because a user had deleted a Lease of a member",
    202755: "a pod of an earlier run took the round Lease when all of the next had succeeded",
    3: "one that had left its round made the Lease again, and published the round after it a second time",
    62: "members of the first round were taken for participants that wait, after its Lease was deleted",
    750: "a report of another coordinator was old or new by the difference of two clocks",
    2619: "one that waited in the run before made a deleted round Lease again, and its id was used twice",
    300671: "one that had missed two rounds left one number out, and an id was used twice",
    304019: "one that set the round Lease forward did not know that another round had followed",
    309523: "an old record in the Lease that this run coordinates was taken for a run that its own pod is in",
    314937: "a wrong accuser renewed its Lease, and was never judged: the Leases were listed again for ever",
    511000: "a report by the clock of another coordinator stayed when the round Lease was made again",
    406675: "a frozen member, whose Lease a user had deleted, trained on beside another round of its number",
    2005: "an agent never heard of its round, which its seat had read, because its watch was late",
    70019964: "who could not write was judged by a coordinator that, as it wrote nothing, did not know it",
    60030406: "who writes late was judged 15 s after a request had failed; the server was away for longer",
    60029523: "the agent of a coordinator did not hear what its seat had written, and a number came again",
    50004619: "a number was left out before it could be read which rounds a participant had seen",
    40019943: "a new coordinator did not know that the API server had been away, and judged who wrote late",
    40022085: "a report was not read, because a user had written over the announcement beside it",
    81043875: "to the judge a round whose member's Lease a user had deleted could train no more",
    81060776: "the judge did not see that a user had deleted all that showed a round, within a second",
    82221731: "to the judge a pod that had ended, and could not say so, held no name with its old Lease",
    82245466: "a failure in an earlier round of the same number ended one that trained",
    83029150: "the judge did not know that a deletion is seen late while events are late",
    40018844: "a copied Lease had the UID of a pod that lives, which counted as ended with the copy's port",
}


@pytest.mark.parametrize("seed", FOUND, ids=str)
def test_what_was_found_once(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("seed", range(5))
def test_of_two_runs_of_one_name_that_begin_at_once_one_trains(seed: int) -> None:
    history = History(seed)
    other = replace(history.run, id="run-2")
    for slot in range(other.minimum):
        history.start(f"other-{slot}", slot, run=other)
    history.kernel.run(60.0)
    assert [one.settled.run for one in history.truth.rounds.values() if one.whole] in (["run-1"], ["run-2"])
    assert {p.process.exit for p in history.pods.values()} == {""}


@pytest.mark.parametrize("seed", range(5))
def test_rolling_restarts_fail_no_run(seed: int) -> None:
    """As those of a StatefulSet: one pod after the other is deleted, and made again by the same name."""
    history = History(seed)
    history.pods_in_sight = history.deputies = True
    history.kernel.run(60.0)
    for number in range(2 * MOST_EARLY_ENDS):
        name = sorted(history.pods, reverse=True)[number % len(history.pods)]
        history.evict(name, 3.0)
        history.kernel.after(5.0, history.start_again, name, history.pods[name].process.slot, history.run)
        history.kernel.run(14.0)
    history.kernel.run(60.0)
    newest = history.newest()
    assert newest is not None
    assert (newest.closed, newest.early_ends) == (False, 0)
    assert len([one for one in history.truth.rounds.values() if one.whole]) == 1


@pytest.mark.parametrize("seed", range(5))
def test_pods_that_stay_when_their_agents_have_ended_hold_no_name(seed: int) -> None:
    """A Job keeps failed pods, and their Leases stay with them. The next run may not watch pods."""
    history = History(seed)
    history.pods_in_sight = history.deputies = False
    history.kernel.run(30.0)
    for pod in history.pods.values():
        pod.process.give_up()
    history.run = replace(history.run, id="run-2")
    for slot in range(history.run.maximum):
        history.start(f"next-{slot}", slot)
    history.kernel.run(60.0)
    assert [one.settled.run for one in history.truth.rounds.values() if one.whole] == ["run-2"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.rule)
def test_the_simulation_tells_when_a_rule_is_gone(mutation: Mutation) -> None:
    """Within as many histories as it says."""
    found = set()
    with without(mutation.rule):
        for seed in range(mutation.seed, mutation.seed + mutation.histories):
            found.add(check(seed)[0])
            if found & set(mutation.breaks):
                return
    pytest.fail(f"{mutation.histories} histories do not tell that the rule is gone; found {found}")
