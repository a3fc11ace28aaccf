"""What is peculiar to one history beside its faults: how its pods are made, what they run, what goes wrong
for ever.

Each class is drawn by itself, so that a new one changes no other history.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from elasticjob.rounds.sizes import ANY, Sizes

CLASSES = (
    *("sidecars", "broken", "scale", "commands", "neighbour", "writes", "stranded", "fencing", "drains"),
    *("payback", "warm", "fenced", "uneven", "mute", "sizes", "racks", "queue", "gang", "memory"),
)
SHARE = 0.1
"""The part of all histories in which a class is."""

ON = set(CLASSES)
"""The classes that are drawn at all."""

NEEDED_BY = {"I8": {"commands"}, "I10": {"scale"}, "I14": {"broken"}, "Silence": {"stranded"}}
"""Rules that are judged where one of these classes is on."""


class Broken(NamedTuple):
    """A slot whose agent, or a script whose workers, fail again and again. ``slot``: None for all of them.
    ``seconds``: how long after it has joined or, with ``trains``, after its round was established.
    ``mended``: at last it works."""

    slot: int | None
    seconds: float
    trains: bool
    mended: bool


class Scaler(NamedTuple):
    """Somebody who changes the number of replicas every few ``seconds``, ``times`` in a row, while there is
    ``room`` for so many pods. ``alone``: nothing else happens."""

    seconds: float
    times: int
    room: int
    alone: bool


class Commands(NamedTuple):
    """What containers run after torchrun: something that takes ``seconds`` and fails ``failures`` times, or
    torchrun again, ``torchruns`` in all. ``before`` it something that takes so long, and ends well when it is
    told to end."""

    seconds: float
    failures: int
    torchruns: int
    before: float


OWNED = ("role", "policy", "event")
"""What the operator writes of a job beside its pods and Leases. It is played where it fails."""


class Failing(NamedTuple):
    """Writes that fail (``what``): pods being made or deleted or participants' own Leases, in one slot or in
    all; the job's Role, NetworkPolicy, Events or status; by ``how``. ``seconds``: for how long, for ever
    with infinity."""

    what: str
    how: str
    slot: int | None
    seconds: float


@dataclass(frozen=True)
class Traits:
    """``sidecars``: beside each training container another one runs until its pod is deleted. ``places``: for
    how many pods more than are wanted there is room, None: for all. ``neighbour``: every so many seconds a
    write for another tenant's job fails, for ever. ``stranded``: watches of operators die without a sign so
    often (seconds), and when a round is broken. ``fencing``: the job waits for proof that a round has stopped
    no longer than for so many seconds, and whole rounds are cut off. ``drains``: the script calls
    ``should_stop``. ``payback``: growth is weighed, and has to pay within so many seconds. ``warm``: warm
    workers are on, and in a round so many leaders say that their members prepare the next start without end.
    ``fenced``: checkpoints refuse what an earlier round saves, and whole rounds are cut off. ``uneven``: the
    script calls ``should_stop``, and every other slot's workers have so many seconds less to train. ``mute``:
    so often (seconds) the API server refuses an agent's writes for a while, and not what it reads. ``sizes``:
    rounds may only have these. ``racks``: the racks of the nodes are known. ``queue``: the job is in a queue
    of Kueue. ``gang``: the job has a PodGroup, whose minimum cannot be changed (True) or can (False).
    ``memory``: the script calls ``should_stop``, and the job has memory checkpoints."""

    sidecars: bool = False
    places: int | None = None
    broken: Broken | None = None
    scaler: Scaler | None = None
    commands: Commands | None = None
    neighbour: float | None = None
    failing: Failing | None = None
    stranded: float | None = None
    fencing: int | None = None
    drains: bool = False
    payback: int | None = None
    warm: float | None = None
    fenced: bool = False
    uneven: float = 0.0
    mute: float | None = None
    sizes: Sizes = ANY
    racks: bool = False
    queue: bool = False
    gang: bool | None = None
    memory: bool = False

    @property
    def holds_pods(self) -> bool:
        """Whether pods stay that should go: their deletion fails, or the status does, which comes first."""
        return self.failing is not None and self.failing.what in ("delete", "status")


_SIZES = (Sizes((1, 2, 4)), Sizes((1, 3)), Sizes((2, 5)), Sizes(multiple=2), Sizes(multiple=3))


def draw(seed: int) -> Traits:
    """The traits of this history; most have none."""
    dice = {name: random.Random(f"{name} {seed}") for name in CLASSES}
    here = {name for name in sorted(ON) if dice[name].random() < SHARE}
    sidecars = "sidecars" in here
    return Traits(
        sidecars,
        dice["sidecars"].choice((0, 1, None)) if sidecars else None,
        _broken(dice["broken"]) if "broken" in here else None,
        _scaler(dice["scale"]) if "scale" in here else None,
        _commands(dice["commands"]) if "commands" in here else None,
        dice["neighbour"].choice((0.7, 2.5, 9.0, 20.0)) if "neighbour" in here else None,
        _failing(dice["writes"]) if "writes" in here else None,
        dice["stranded"].choice((30.0, 80.0, 300.0)) if "stranded" in here else None,
        dice["fencing"].choice((60, 60, 90, 150)) if "fencing" in here else None,
        "drains" in here,
        dice["payback"].choice((1, 20, 60, 600)) if "payback" in here else None,
        dice["warm"].choice((0.0, 0.1, 1.0)) if "warm" in here else None,
        "fenced" in here,
        dice["uneven"].choice((5.0, 20.0, 100.0)) if "uneven" in here else 0.0,
        dice["mute"].choice((10.0, 30.0, 90.0)) if "mute" in here else None,
        dice["sizes"].choice(_SIZES) if "sizes" in here else ANY,
        "racks" in here,
        "queue" in here,
        dice["gang"].random() < 0.5 if "gang" in here else None,
        "memory" in here and "queue" not in here,
    )


def _broken(rng: random.Random) -> Broken:
    slot = rng.choice((None, 0, 1, 2))
    seconds = rng.choice((0.0, 0.5, 3.0, 20.0)) * rng.uniform(0.8, 1.2)
    return Broken(slot, seconds, slot is None or rng.random() < 0.5, rng.random() < 0.5)


def _scaler(rng: random.Random) -> Scaler:
    seconds = rng.choice((2.0, 5.0, 12.0, 25.0, 60.0))
    return Scaler(seconds, rng.randint(3, 12), rng.choice((2, 3, 4, 5, 99)), rng.random() < 0.6)


def _commands(rng: random.Random) -> Commands:
    after = rng.choice((0.0, 1.0, 8.0, 60.0)), rng.choice((0, 0, 1, 2)), rng.choice((1, 1, 2))
    return Commands(*after, rng.choice((0.0, 0.0, 20.0)))


def _failing(rng: random.Random) -> Failing:
    what = rng.choice(("make", "make", "delete", "lease", *OWNED, "status"))
    how = rng.choice(("403", "429", "500", "time limit"))
    slot = rng.choice((0, 1, 2, None)) if what != "lease" else rng.choice((0, 1, 2))
    if what in (*OWNED, "status"):
        slot = None
    return Failing(what, how, slot, rng.choice((30.0, 200.0, float("inf"), float("inf"))))
