"""Rules without which some history breaks what the oracle checks (kept as a test)."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """Without ``rule`` (of ``tests.rules``) some history must break one of ``breaks``. ``seed`` is one that
    did when it was last looked for: where to begin; the test warns with the new one when it has moved.
    ``trait``: the class (``traits``) that all histories are of, where the rule is for one."""

    breaks: tuple[str, ...]
    rule: str
    seed: int = 0
    trait: str = ""


MUTATIONS = [
    Mutation(("I1",), "I1 a new number"),
    Mutation(("I1",), "I1 the record never goes back", 6),
    Mutation(("I2",), "I2 the world is the round"),
    Mutation(("I3",), "I3 never fewer", 1),
    Mutation(("I4",), "I4 who may be a member"),
    Mutation(("I4", "I5", "Liveness"), "I4 late announcements", 2788),
    Mutation(("I5",), "I5 two witnesses", 1),
    Mutation(("I5",), "I5 not without a witness", 917),
    Mutation(("Liveness",), "I6 losses end rounds", 44),
    Mutation(("I7",), "I7 charged once"),
    Mutation(("I7",), "I7 charges are kept"),
    Mutation(("I8",), "I8 all must succeed", 1),
    Mutation(("Fencing",), "fencing", 408),
    Mutation(("Fencing",), "fencing for as long as the job says", 26, "fencing"),
    Mutation(("Liveness",), "silent announcements are replaced", 2625),
    Mutation(("I3",), "I3 never more", 1),
    Mutation(("I7",), "better evidence moves a charge", 2681),
    Mutation(("I7",), "members that are lost leave their slot", 44),
    Mutation(("I7",), "who takes pods away", 56),
    Mutation(("Suspension",), "a suspension is seen", 78),
    Mutation(("Liveness",), "hangs end rounds", 256),
    Mutation(("Liveness",), "nobody waits without a timer"),
    Mutation(("I11",), "I11 the pass goes on", 72, "writes"),
    Mutation(("I11",), "I11 people are told", 19, "writes"),
    Mutation(("Liveness",), "one failure is no outage", 96, "neighbour"),
    Mutation(("Silence",), "what a dead watch brings is not believed", 692, "stranded"),
    Mutation(("I8",), "I8 the exit barrier is not the end", 18, "commands"),
    Mutation(("I8",), "I8 whoever is taken away has not refused to join", 290, "commands"),
    Mutation(("Remains",), "sidecars hold nothing", 26, "sidecars"),
    Mutation(("I14",), "I14 rounds are paced", 14, "broken"),
    Mutation(("I10",), "I10 growth asks whether it can", 50, "scale"),
    Mutation(("I10",), "I10 nothing is done again", 1582, "scale"),
    Mutation(("Liveness",), "growth waits for them a minute", 77, "warm"),
    Mutation(("I3",), "I3 only some sizes", 0, "sizes"),
    Mutation(("Quota",), "quota follows pods", 0, "queue"),
    Mutation(("Gang", "Liveness"), "pods leave a PodGroup that holds them", 142, "gang"),
    Mutation(("Liveness",), "a drain ends whoever has succeeded", 28, "uneven"),
]
