"""One history of memory checkpoints: rounds, saves, and what goes wrong at any moment, by a seed.

Real are the keeper, the sender of copies, the protocol, the format of pieces, ``decide``, ``Saves`` and what
verifies pieces when they are loaded. Played are the order of events, the collectives and the meeting.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from elasticjob.memory import decide
from elasticjob.memory.pieces import Save
from elasticjob.memory.refused import RefusedError
from tests.memory.content import State, load, state_of
from tests.memory.ledger import Ledger, Violation
from tests.memory.network import Network
from tests.memory.pods import FOLDER, Pod, Worker

MOST_PODS = 4


class History:
    """``calm``: nothing is damaged or cut, and each round ends by the loss of one pod or worker."""

    def __init__(self, seed: int, calm: bool = False) -> None:
        self.seed, self.calm = seed, calm
        self.draw = random.Random(seed)
        self.ledger, self.network = Ledger(), Network()
        self.members: list[Pod] = []
        self.away: list[Pod] = []
        """Pods that were cut off: they live on in their round."""
        self.zombies: list[tuple[Worker, Iterator[str]]] = []
        """Workers of former rounds that live on, and what they are doing."""
        self.workers: list[Worker] = []
        self.number = self.made = self.step = self.opening = 0
        self.saved: list[Save] = []
        """What all ranks have saved in this round."""
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []

    def play(self) -> Counter[str]:
        """Raises Violation. Returns how often what has happened."""
        with self.network.there():
            try:
                for _ in range(self.draw.randint(3, 6)):
                    self._begin()
                    self._train()
                self._begin()
            finally:
                for worker in [*self.workers, *(worker for worker, _ in self.zombies)]:
                    worker.die()
                for pod in [*self.members, *self.away]:
                    pod.close()
                self.network.close()
        return self.counts

    def say(self, what: str, text: object = "") -> None:
        self.counts[what] += 1
        self.trace.append(f"round {self.number} step {self.step}: {what} {text}")

    def happens(self, chance: float) -> bool:
        return not self.calm and self.draw.random() < chance

    # -- rounds ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The pods that are left and new ones begin a round and resume."""
        self.number += 1
        while self.away and self.happens(0.3):
            self.members.append(self.away.pop())
            self.say("came back", self.members[-1].number)
        wanted = self.draw.randint(2 if self.calm else 1, MOST_PODS)
        for _ in range(wanted - len(self.members)):
            self.made += 1
            self.members.append(Pod(self.made, self.network, self.ledger))
        self.draw.shuffle(self.members)
        for place, pod in enumerate(self.members):
            pod.enter(self.number)
            pod.meet(f"token {self.number}", self.members[(place + 1) % len(self.members)])
        self.network.settle()
        self.slots = 1 if self.draw.random() < 0.7 else 2
        self._open()
        self._haunt()
        self._resume()

    def _open(self) -> None:
        pods = [pod for pod in self.members for _ in range(self.slots)]
        openings = [pod.keeper.open(pod.key) for pod in pods]
        self.workers = [
            Worker(pod, rank, len(pods), self.number, openings[0], self.ledger)
            for rank, pod in enumerate(pods)
        ]
        self.opening = openings[0]

    def _resume(self) -> None:
        """As ``Checkpoints.resume``, without a folder."""
        inventories = [worker.pod.keeper.inventory(worker.key) for worker in self.workers]
        loaded, state = None, State()
        for candidate in decide.candidates(inventories, FOLDER):
            pieces = [worker.pieces(candidate) for worker in self.workers]
            found = load(pieces, candidate)
            self.counts["pieces passed over"] += sum(len(one.passed_over) for one in pieces)
            if not isinstance(found, str):
                loaded, state = candidate.save, found
                break
            self.say("passed over", found)
        self.network.settle()
        self.say("resumed", loaded)
        self.ledger.check(loaded, state, {pod.number for pod in self.members})
        redone = [save for save in self.saved if loaded is None or save > loaded]
        if self.calm and len(redone) > 1:
            raise Violation("M4", f"{loaded} was loaded after the loss of one, {redone} are done again")
        for worker in self.workers:
            worker.pod.keeper.resumed(worker.key, FOLDER, loaded, self.opening)
        self.ledger.resumed(loaded)
        self.saved = []
        self.step = loaded.step if loaded is not None else 0

    def _reopen(self) -> None:
        """The script opens its checkpoints again, and trains another state, perhaps from the beginning."""
        self.say("opened again")
        self._open()
        self.saved = []
        if self.draw.random() < 0.5:
            self._resume()
        else:
            self.step = 0

    # -- saves ----------------------------------------------------------------------------------------------

    def _train(self) -> None:
        for _ in range(self.draw.randint(1, 6)):
            if self.happens(0.05):
                self._reopen()
            if not self._save():
                return
            self._harm()
            self._haunt()
        self._lose()

    def _save(self) -> bool:
        """One save of all ranks. Whether the round goes on."""
        said = [worker.last() for worker in self.workers]
        ended, well = all(one is not None for one in said), all(one is None or not one.why for one in said)
        self.step += 1
        for worker in self.workers:
            begins = worker.saves.may_begin(ended, well)
            assert begins == ended
        if not ended:
            self.say("skipped")
            self._copy_some()
            return True
        complete = self.workers[0].saves.complete
        if complete is not None:
            self._check_copies(complete, [one is not None and one.alone != "" for one in said])
            self.ledger.complete(complete)
        going = [worker.save(self.step, self._state(worker, self.step)) for worker in self.workers]
        moment, last = 0, self.draw.randint(0, 4 * len(going) - 1) if self.draw.random() < 0.15 else None
        left = list(going)
        while left:
            if moment == last:
                self._lose(going)
                return False
            one = self.draw.choice(left)
            if next(one, "") == "taken":
                left.remove(one)
            moment += 1
            if self.draw.random() < 0.3:
                self._copy_some()
        self.saved.append(self.workers[0].name(self.step).save)
        self.say("saved", self.saved[-1])
        if self.calm or self.draw.random() < 0.8:
            while any(pod.waits() for pod in self.members):
                self._copy_some()
        return True

    def _check_copies(self, complete: Save, alone: list[bool]) -> None:
        """M5: what the ranks take for complete has its copies, or an agent has said that it has none."""
        for worker, says in zip(self.workers, alone, strict=True):
            name = worker.name(complete.step)
            if worker.pod.partner is not None and name not in self.ledger.have_copies and not says:
                raise Violation("M5", f"{name} has no copy, but {complete} passes for complete")

    def _state(self, worker: Worker, step: int) -> State:
        return state_of(self.seed, worker.name(step))

    def _copy_some(self) -> None:
        pod = self.draw.choice(self.members)
        if self.happens(0.1):
            self.say("cut", pod.copy_one(self.draw.random()))
        else:
            pod.copy_one()

    # -- what goes wrong ------------------------------------------------------------------------------------

    def _lose(self, going: list[Iterator[str]] | None = None) -> None:
        """A worker or a pod is lost, at any moment; workers of others may go on in their save."""
        kinds = ["worker", "pod"] if self.calm else ["worker", "pod", "pod", "cut off", "drain"]
        kind, victim = self.draw.choice(kinds), self.draw.choice(self.members)
        self.say(f"lost: {kind}", victim.number)
        if kind in ("pod", "cut off"):
            self.members.remove(victim)
        if kind == "pod":
            victim.close()
        elif kind == "cut off":
            self.away.append(victim)
        for worker, save in zip(self.workers, going or [iter(())] * len(self.workers), strict=True):
            dies = worker.pod is victim and kind in ("worker", "pod")
            if not dies:
                self._go_on(save)
            if not dies and self.happens(0.4):
                self.zombies.append((worker, save))
            else:
                worker.die()
        for _ in range(self.draw.randint(0, 2) if self.members else 0):
            self._copy_some()

    def _go_on(self, save: Iterator[str]) -> None:
        """It does not know yet that the round has ended."""
        for _ in range(self.draw.choice([0, 0, 1, 2, 3])):
            next(save, "")

    def _haunt(self) -> None:
        """Workers of former rounds go on, and pods that were cut off with them."""
        for place, (worker, save) in enumerate(self.zombies):
            if self.draw.random() < 0.5:
                continue
            self.say("haunted", worker.name(0))
            with suppress(RefusedError):
                self._go_on(save)
                if self.draw.random() < 0.5:
                    worker.pod.keeper.resumed(worker.key, FOLDER, None, 1)
                if worker.saves.last is not None:
                    step = worker.saves.last.save.step + 1
                    self.zombies[place] = worker, worker.save(step, self._state(worker, step))
                    self._go_on(self.zombies[place][1])
        for pod in self.away:
            pod.copy_one()

    def _harm(self) -> None:
        """Flip a bit, or put an older piece in the place of a newer one."""
        if not self.happens(0.15):
            return
        pod = self.draw.choice(self.members)
        held = [piece for piece in pod.keeper._shelf.pieces.values() if piece.crc32 is not None]
        if not held:
            return
        piece = self.draw.choice(held)
        others = [one for one in held if one.size == piece.size and one.name != piece.name]
        if others and self.draw.random() < 0.5:
            other = self.draw.choice(others)
            os.pwrite(piece.descriptor, os.pread(other.descriptor, other.size, 0), 0)
            piece.crc32 = other.crc32
            self.say("put in the place of another", piece.name)
        else:
            flip(piece.descriptor, self.draw.randrange(8 * piece.size))
            self.say("flipped", piece.name)
        self.ledger.harmed(piece.name, pod.number)


def flip(descriptor: int, bit: int) -> None:
    """Flip one bit of a piece."""
    byte = os.pread(descriptor, 1, bit // 8)[0]
    os.pwrite(descriptor, bytes([byte ^ (1 << bit % 8)]), bit // 8)
