"""Faults: what happens to pods, to the API server, to the paths between them, and what users do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticjob.contract.fields import MAX_NUMBER, RecordError
from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.coordination.pods import BACK_SECONDS
from elasticjob.peers.run import Run
from elasticjob.peers.settled import Settled
from tests.peers.api import Stored

if TYPE_CHECKING:
    from tests.peers.history import History

POD = ("kill", "kill", "kill", "fail", "freeze", "cut")
COORDINATOR = ("kill", "kill", "freeze", "cut")
SERVER = ("away", "lossy", "late", "stuck")
RARE = ("islands", "hang", "split", "next run", "amnesia")
USER = ("wipe", "lease", "garbage")
SET_BACK, HANGS, WAITING_HANGS = 0.03, 0.03, 0.2
"""How often: at a strike, at a round's beginning, and then for each pod of another run. Drawn apart, so that
the other faults of a seed are as they were."""
COPIED, BAD_PATH = 0.04, 0.04
"""How often at a strike. Drawn apart, too."""
SLOW_LISTS, ALWAYS_SLOW = 0.03, 0.05
"""How often at a strike, and in which part of the histories from their beginning to their end. Drawn
apart."""
FORBIDDEN, PODS_UNSEEN, CLAIMED = 0.02, 0.03, 0.02
"""How often at a strike, beside another fault. Drawn apart."""
EVICTED, AWAY, GIVEN_UP = 0.08, 0.05, 0.06
"""How often at a strike, beside another fault. Drawn apart, too."""


class Faults:
    """Strikes one history. What may end a round is told to the oracle (``Truth.disturb``)."""

    def __init__(self, history: History, seed: int) -> None:
        self._history = history
        self._apart = random.Random(f"apart {seed}")
        self._further = random.Random(f"further {seed}")
        self._slow = random.Random(f"slow {seed}")
        self._beside = random.Random(f"beside {seed}")
        self._users_pods = random.Random(f"pods {seed}")
        self._earlier: dict[str, Stored] = {}
        """Round Leases in which a round began, by the run."""
        self._kernel, self._api, self._truth = history.kernel, history.api, history.truth
        self._runs = 1
        self._list_seconds = self._slow.uniform(5.0, 20.0) if self._slow.random() < ALWAYS_SLOW else 0.0
        self.make_peace()

    def make_peace(self) -> None:
        """No more faults of the API server."""
        api = self._api
        api.away, api.lossy, api.lag, api.list_seconds = False, 0.0, 1.0, self._list_seconds
        api.forbids = False
        api.cut_off.clear()
        self._history.pods_unseen = False

    def strike(self) -> None:
        """One fault, drawn."""
        rng = self._kernel.rng
        if self._slow.random() < SLOW_LISTS:
            self._slow_lists()
        self._strike_beside()
        if self._users_pods.random() < EVICTED:
            self._evict()
        if self._users_pods.random() < AWAY:
            self._away()
        if self._users_pods.random() < GIVEN_UP:
            self._give_up()
        if self._apart.random() < SET_BACK and self._set_back():
            return
        if self._further.random() < COPIED and self._copy():
            return
        if self._further.random() < BAD_PATH and self._bad_path():
            return
        kinds: list[tuple[Callable[[str], None], tuple[str, ...]]] = [
            (self._pod, POD),
            (self._coordinator, COORDINATOR),
            (self._server, SERVER),
            (self._rare, RARE),
        ]
        kinds += [(self._meddle, USER)] * (rng.random() < 0.3)
        strike, names = kinds[min(len(kinds) - 1, int(rng.random() * len(kinds)))]
        strike(rng.choice(names))

    def _strike_beside(self) -> None:
        """Sometimes: all requests are refused for a while; the API server does not list pods, for less time
        than a coordinator waits for them; a user writes into a participant's Lease that it has seen the last
        number that there can be."""
        rng, history = self._beside, self._history
        drawn = rng.random()
        if drawn < FORBIDDEN:
            self._kernel.say("forbids all requests")
            self._api.forbids = True
            self._kernel.after(rng.uniform(1.0, 60.0), setattr, self._api, "forbids", False)
        elif drawn < FORBIDDEN + PODS_UNSEEN and history.pods_in_sight:
            self._kernel.say("unseen  all pods")
            history.pods_unseen = True
            self._kernel.after(rng.uniform(1.0, BACK_SECONDS), setattr, history, "pods_unseen", False)
        elif FORBIDDEN + PODS_UNSEEN < drawn < FORBIDDEN + PODS_UNSEEN + CLAIMED:
            self._claim(rng.choice(sorted(history.living()) or [""]))

    def _claim(self, name: str) -> None:
        stored = self._api.leases.get(name)
        try:
            record = ParticipantRecord.parse(stored.annotations["participant"]) if stored else None
        except RecordError:
            return
        if record is not None:
            self._kernel.say(f"claims  {name}")
            claim = replace(record, seen_job_uid=self._history.run.id, seen_round=MAX_NUMBER)
            self._api.apply(name, {"participant": claim.dump()})

    # -- pods ----------------------------------------------------------------------------------------------

    def _any(self) -> str:
        alive = sorted(self._history.living())
        return self._kernel.rng.choice(alive) if alive else ""

    def _members(self) -> list[str]:
        """Those that are in the last round and live."""
        newest = self._history.newest()
        members = newest.state.members if newest is not None else ()
        return [m.name for m in members if m.name in self._history.living()]

    def _pod(self, kind: str) -> None:
        if name := self._any():
            self._hurt(kind, name)

    def _coordinator(self, kind: str) -> None:
        """The coordinator, sometimes with another."""
        history = self._history
        stored = self._api.leases.get(history.lease)
        names = {stored.holder.partition("_")[0] if stored is not None else ""}
        if self._kernel.rng.random() < 0.4:
            names.add(self._any())
        for name in sorted(names & history.living()):
            self._hurt(kind, name)

    def _hurt(self, kind: str, name: str) -> None:
        kernel, process = self._kernel, self._history.pods[name].process
        if kind == "kill":
            self._kill(name)
            return
        self._truth.disturb(name)
        kernel.say(f"{kind:7} {name}")
        if kind == "fail":
            process.fail()
        elif kind == "freeze":
            process.freeze()
            kernel.after(self._while(), process.thaw)
        else:
            self._api.cut(process, watches=kernel.rng.random() < 0.7)
            kernel.after(self._while(), self._api.cut_off.discard, process)

    def _evict(self) -> None:
        """A pod is deleted, and what is in it ends with 0; another comes in its place."""
        history, rng = self._history, self._users_pods
        names = sorted(history.living())
        if not names:
            return
        name = rng.choice(names)
        process = history.pods[name].process
        history.evict(name, rng.uniform(0.5, 30.0))
        new = f"{name.rpartition('-')[0]}-{100 + next(history.ids)}"
        self._kernel.after(rng.uniform(2.5, 30.0), history.start_again, new, process.slot, process.run)

    def _while(self) -> float:
        """How long a fault goes on: mostly less than what is waited for, sometimes longer than all of it."""
        return (
            self._kernel.between(1.0, 30.0)
            if self._kernel.rng.random() < 0.8
            else self._kernel.between(30.0, 90.0)
        )

    def _kill(self, name: str) -> None:
        history, kernel, pod = self._history, self._kernel, self._history.pods[name]
        how = kernel.rng.choice(["in place", "delete", "stays", "gone for good"])
        slot, uid = pod.process.slot, pod.process.uid
        history.end(name, delete=how in ("delete", "gone for good"), in_place=how == "in place")
        if how == "in place":
            kernel.after(kernel.between(1.0, 20.0), history.start_again, name, slot, pod.process.run, uid)
        elif how != "gone for good":
            same_name = how == "delete" and kernel.rng.random() < 0.5
            new = name if same_name else f"{name.rpartition('-')[0]}-{100 + next(history.ids)}"
            kernel.after(kernel.between(2.5, 30.0), history.start_again, new, slot, pod.process.run)

    # -- rare ----------------------------------------------------------------------------------------------

    def _rare(self, kind: str) -> None:
        {
            "islands": self._islands,
            "hang": self._hang,
            "split": self._split,
            "next run": self._next_run,
            "amnesia": self._amnesia,
        }[kind]()

    def _islands(self) -> None:
        """All members of the round are silent at once, and may train on: each is cut off, or frozen."""
        for name in self._members():
            self._hurt(self._kernel.rng.choice(["cut", "cut", "freeze"]), name)

    def _hang(self) -> None:
        """The leader says that training hangs; sometimes the members are cut off before they hear what
        follows."""
        members = self._members()
        if members and self._history.pods[members[0]].process.hang():
            self._truth.disturb(members[0])
            self._kernel.say(f"hang    {members[0]}")
            if self._kernel.rng.random() < 0.6:
                self._kernel.after(self._kernel.between(0.0, 0.08), self._cut_and_replaced)

    def _cut_and_replaced(self) -> None:
        """The members are on nodes that are cut off, and others are made in their place."""
        history, kernel = self._history, self._kernel
        for name in self._members():
            process = history.pods[name].process
            self._truth.disturb(name)
            self._api.cut(process, watches=True)
            kernel.after(kernel.between(20.0, 80.0), self._api.cut_off.discard, process)
        kernel.say("cut     all members")
        for _ in range(history.run.minimum):
            history.start(f"more-{next(history.ids)}", 9)

    def _split(self) -> None:
        """Two pods cannot reach each other."""
        one, other = self._any(), self._any()
        if one != other:
            for name in (one, other):
                self._truth.disturb(name)
            self._kernel.say(f"split   {one} {other}")
            self._history.split(one, other)
            self._kernel.after(self._while(), self._history.mend, one, other)

    def _bad_path(self) -> bool:
        """One pod reaches the API server and no other pod, for minutes. Returns whether there is one."""
        names = sorted(self._history.living())
        if len(names) < 2:
            return False
        one = self._further.choice(names)
        seconds = self._further.uniform(60.0, 400.0)
        self._kernel.say(f"bad     the path of {one}, for {seconds:.0f} s")
        for other in names:
            self._truth.disturb(other)
            if other != one:
                self._history.split(one, other)
                self._kernel.after(seconds, self._history.mend, one, other)
        return True

    def _amnesia(self) -> None:
        """One that is out of the round, or its first to fail, hears nothing while the others begin another;
        then they are cut off, and the round Lease is deleted."""
        history, kernel = self._history, self._kernel
        name = self._any()
        if not name:
            return
        process = history.pods[name].process
        for watch in [w for w in self._api.watches if w.host is process]:
            watch.break_off()
        process.fail()
        self._truth.disturb(name)
        kernel.say(f"amnesia {name}")

        def later() -> None:
            for member in self._members():
                if member != name:
                    self._hurt("cut", member)
            self._wipe()

        kernel.after(kernel.between(0.1, 12.0), later)

    def _wipe(self) -> None:
        """The round Lease is deleted. Creation times are whole seconds, so a deletion in the first one of a
        participant's Lease is not noticed: it is not played."""
        made = [stored.created for name, stored in self._api.leases.items() if name != self._history.lease]
        if self._kernel.now < max(made, default=0.0) + 1.5:
            return
        self._truth.wiped = self._kernel.now
        self._api.delete(self._history.lease)
        for name in sorted(self._history.living()):
            if name not in self._api.leases:
                self._truth.excuse(name)  # a user had deleted its Lease before

    def _next_run(self) -> None:
        """A user starts the next run of this name; the pods of the one before are deleted, or forgotten until
        there is peace."""
        history, kernel = self._history, self._kernel
        if self._runs == 2:
            return
        if kernel.rng.random() < 0.5:
            for name in sorted(history.living()):
                kernel.after(kernel.between(0.0, 10.0), history.end_if_lives, name)
        self._begin_next_run()

    def _begin_next_run(self) -> None:
        history, kernel, before = self._history, self._kernel, self._history.run
        self._runs += 1
        history.run = Run("run", f"run-{self._runs}", before.minimum, before.maximum)
        kernel.say(f"next    {history.run.id}")
        for slot in range(before.maximum):
            history.start(f"next-{slot}", slot)

    def _away(self) -> None:
        """All pods of the run are gone for a moment, and one of another run of its name has waited for that.
        Later they come back, and that one is deleted."""
        history, kernel, rng = self._history, self._kernel, self._users_pods
        kernel.say(f"away    {history.run.id}")
        for name in sorted(history.living()):
            history.end_if_lives(name)
        other = f"aside-{next(history.ids)}"
        history.start(other, 0, run=replace(history.run, id="run-aside", minimum=1))
        back = rng.uniform(5.0, 60.0)
        for slot in range(history.run.maximum):
            name = f"back-{next(history.ids)}"
            kernel.after(back + rng.uniform(0.0, 5.0), history.start_again, name, slot, history.run)
        kernel.after(rng.uniform(back, back + 30.0), history.end_if_lives, other)

    def _give_up(self) -> None:
        """All that live in the run end without success, and their pods stay. A user starts the next run, at
        times in these pods, too."""
        history, rng = self._history, self._users_pods
        if self._runs == 2:
            return
        self._kernel.say(f"give up {history.run.id}")
        given_up = [history.pods[name].process for name in sorted(history.living())]
        for process in given_up:
            self._truth.disturb(process.name)
            process.give_up()
        self._begin_next_run()
        for one in given_up if rng.random() < 0.7 else ():
            later = rng.uniform(3.0, 8.0)
            self._kernel.after(later, history.start_again, one.name, one.slot, history.run, one.uid)

    def _copy(self) -> bool:
        """A user copies a participant's Lease under another name. Returns whether there was one."""
        names = [name for name in sorted(self._history.living()) if name in self._api.leases]
        if not names:
            return False
        name, copy = self._further.choice(names), f"copy-{next(self._history.ids)}"
        self._kernel.say(f"copy    {name} as {copy}")
        self._api.apply(
            copy,
            self._api.leases[name].annotations,
            holder=self._further.choice([copy, "", "a b", self._history.pods[name].process.uid]),
        )
        return True

    # -- the API server and its users ----------------------------------------------------------------------

    def began(self, stored: Stored) -> None:
        """A round begins: sometimes the watch of its coordinator hangs from now on, or of one that waits for
        the name."""
        coordinator = stored.holder.partition("_")[0]
        run = Settled.parse(stored.annotations["round"], stored.annotations["state"]).run
        for name, pod in sorted(self._history.pods.items()):
            waits = pod.process.run.id != run
            chance = HANGS if name == coordinator else WAITING_HANGS if waits else 0.0
            if chance and self._apart.random() < chance:
                seconds = self._apart.uniform(25.0, 60.0)
                self._kernel.say(f"hangs   the list of {name}")
                pod.process.list_hangs(seconds)
        self._earlier.setdefault(run, stored)

    def _set_back(self) -> bool:
        """A user applies the round Lease as it was saved when the first round of the run began. Only while
        nothing else is wrong: the state of one that has seen no more cannot be set forward. Returns whether
        it was done."""
        history = self._history
        saved, newest = self._earlier.get(history.run.id), history.newest()
        unwell = self._api.away or self._api.forbids or self._api.lossy or self._api.lag > 1
        unwell = unwell or any(history.ails(name) for name in history.living())
        if unwell or saved is None or newest is None or history.lease not in self._api.leases:
            return False
        shown = self._truth.read(self._api.leases[history.lease])
        if newest.closed or shown is None or shown.run != newest.run:
            return False
        if shown.state.number < 2:  # no number tells the saved record from the present one
            return False
        self._kernel.say("set back")
        with self._truth.by_a_user():
            self._api.apply(history.lease, saved.annotations)
        return True

    def _server(self, kind: str) -> None:
        kernel, api = self._kernel, self._api
        if kind == "stuck":
            if api.watches:
                kernel.rng.choice(list(api.watches)).break_off()
            return
        before = {"away": False, "lossy": 0.0, "lag": 1.0}
        attribute = {"away": "away", "lossy": "lossy", "late": "lag"}[kind]
        if attribute == "away":
            api.go_away()
        else:
            setattr(api, attribute, {"lossy": 0.3, "lag": 100.0}[attribute])
        kernel.say(f"api     {kind}")
        kernel.after(kernel.between(1.0, 40.0), setattr, api, attribute, before[attribute])

    def _slow_lists(self) -> None:
        """Lists of many objects take their time for a while: more than others wait for a coordinator. This
        comes beside another fault."""
        seconds, api = self._slow.uniform(5.0, 20.0), self._api
        api.list_seconds = max(seconds, self._list_seconds)
        self._kernel.say(f"lists   take {api.list_seconds:.0f} s")
        self._kernel.after(self._slow.uniform(20.0, 90.0), setattr, api, "list_seconds", self._list_seconds)

    def _meddle(self, kind: str) -> None:
        """A user deletes a Lease, or writes nonsense into one."""
        history, api, truth = self._history, self._api, self._truth
        name = self._any()
        self._kernel.say(f"{kind:7} {name}")
        if kind == "wipe":
            self._wipe()
            if self._kernel.rng.random() < 0.4:
                history.start(f"more-{next(history.ids)}", 9)
        elif kind == "lease" and name:
            truth.disturb(name)
            if not history.pods_in_sight or truth.wiped > 0:
                truth.excuse(name)
            api.delete(name)
        elif kind == "garbage" and history.lease in api.leases:
            target = self._kernel.rng.choice([history.lease, name])
            if target == history.lease:
                truth.wiped = self._kernel.now
                truth.disturb(name)
            if target in api.leases:
                api.apply(
                    target, {self._kernel.rng.choice(["round", "state", "participant"]): '{"version":1'}
                )
