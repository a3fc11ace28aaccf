"""One seeded history: rounds of one or two jobs in one directory, and what must hold whatever happens.

Saved
    What was called saved is there, whole, until its own job has saved something newer; and its job resumes
    from it, or from something newer of its own.
Fenced
    Once a round has begun, nothing of an earlier one is called saved that the round does not count.
Alone
    A job does not begin while another one, which is well, uses the directory.
Undisturbed
    What a round has resumed from is not removed by an earlier one.
Recovers
    What is set aside for the next claim goes only for a claim. When all are dead and nothing fails any more,
    the next start begins, on a full disk too if that is still there; it resumes and saves, twice, and leaves
    nothing half-written.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field

from elasticjob.checkpoint.claims import BEAT_SECONDS
from elasticjob.checkpoint.directory import RESERVE, RESERVE_BYTES, Directory, is_full
from elasticjob.checkpoint.errors import CheckpointError, NoSpaceError, StaleRoundError
from elasticjob.checkpoint.records import (
    MARKER,
    Claim,
    File,
    Holder,
    Marker,
    Name,
    Token,
    is_claim,
    parse_claim,
    parse_name,
)
from tests.checkpoints.scheduler import Lock, Process, Scheduler
from tests.checkpoints.store import Disk, Mount

PATH = "run"
SHARD = b"x" * 100_000
SHARDS = 2
STARTS = {"A": "aaaaaaaa", "B": "bbbbbbbb"}


class Broken(AssertionError):
    """A rule does not hold."""


@dataclass
class Start:
    """One process: a round of a job, or a start without an ElasticJob (job "")."""

    job: str
    round: int | None
    process: Process
    claim: Claim | None = None
    """From the moment in which it says what counts."""
    good: Name | None = None
    """What it has resumed from."""
    writes_a_claim: bool = True
    """When it begins, or forgets what is damaged: what is set aside may go then."""
    ended: bool = False


@dataclass
class Watch:
    """What one start does to the storage, and what is done to it."""

    history: History
    start: Start

    def trouble(self, what: str, changes: bool) -> str:
        return self.history.trouble(self.start.process, what, changes)

    def removal_seconds(self) -> float:
        return self.history.random.uniform(0, 2 * self.history.removal_seconds)

    def written(self, path: str, content: bytes) -> None:
        file = path.rpartition("/")[2]
        if is_claim(file) and self.start.claim is None:
            claim = parse_claim(file, content)
            self.history.claimed.append((self.start, claim.token))
            self.start.claim = claim if claim.complete is not None else None

    def removed(self, path: str) -> None:
        me = self.start
        if path == f"{PATH}/{RESERVE}" and not me.writes_a_claim:
            raise self.history.broken("Recovers", f"{me.process.name} takes what is set aside for a claim")
        name = parse_name(path.split("/")[1])
        for other in self.history.starts:
            stale = me.claim and other.claim and me.claim.token < other.claim.token
            if stale and name and other.good == name:
                raise self.history.broken(
                    "Undisturbed",
                    f"{me.process.name} removes {path}; {other.process.name} has resumed from it",
                )


@dataclass
class History:
    """A world, with what was called saved in it."""

    seed: int
    keep: int = 2
    calm: bool = False
    starts: list[Start] = field(default_factory=list)
    saved: dict[str, list[Name]] = field(default_factory=dict)
    claimed: list[tuple[Start, Token]] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.seed)
        self.random = self.scheduler.random
        self.keep = self.random.choice((1, 2))
        self.jobs = self.random.choice((["A"], ["A"], ["A", "B"], [""], ["A", ""]))
        objects = self.random.random() < 0.4
        listings = self.random.choice((0.0, 0.0, 0.05))
        full = not objects and self.random.random() < 0.6
        room = (self.keep + 1) * len(self.jobs)  # a job may be killed before it has removed its surplus one
        capacity = room * len(SHARD) * SHARDS + RESERVE_BYTES + 8_000 if full else None
        self.disk = Disk(objects, capacity)
        self.troubles = {
            "kills": self.random.choice((0.0, 0.002, 0.01)),
            "fails": self.random.choice((0.0, 0.0, 0.005, 0.02)),
            "stalls": self.random.choice((0.0, 0.0, 0.002)),
            "listings": listings,
            "foreign": self.random.choice((0.0, 0.02)) if full else 0.0,
        }
        self.removal_seconds = self.random.choice((0.0, 1.0, 20.0))
        if self.random.random() < 0.3:
            self.leave_a_half()

    def leave_a_half(self) -> None:
        """A round of the first job was killed while it saved."""
        token, job = Token(1, 0), self.jobs[0]
        claim = Claim(token, Holder(job, STARTS.get(job, "cccccccc")), frozenset())
        self.disk.folders |= {PATH, f"{PATH}/{Name(token, 10)}"}
        self.disk.files[f"{PATH}/{claim.file}"] = claim.to_json()
        for number in range(SHARDS):
            self.disk.files[f"{PATH}/{Name(token, 10)}/__{number}_0.distcp"] = SHARD

    def say(self, what: str) -> None:
        self.trace.append(f"{self.scheduler.now:8.1f}  {what}")

    def broken(self, rule: str, what: str) -> Broken:
        return Broken(f"seed {self.seed}: {rule}: {what}\n" + "\n".join(self.trace[-60:]))

    # What goes wrong.

    def trouble(self, process: Process, what: str, changes: bool) -> str:
        if self.calm:
            return ""
        if self.random.random() < self.troubles["stalls"]:
            process.stalled = self.scheduler.now + self.random.uniform(1, 120)
            process.was_stalled = True
            self.say(f"{process.name} stalls before {what}")
            self.scheduler.step()
        if self.random.random() < self.troubles["kills"]:
            when = "killed after" if changes and self.random.random() < 0.5 else "killed before"
            self.say(f"{process.name} is {when} {what}")
            return when
        if self.random.random() < self.troubles["foreign"]:
            self.others_write()
        if what in ("list", "sizes") and self.random.random() < self.troubles["listings"]:
            self.say(f"{process.name}: {what} fails")
            return "fails"
        if self.random.random() < self.troubles["fails"]:
            how = "answer lost" if changes and self.random.random() < 0.5 else "fails"
            self.say(f"{process.name}: {what} {how}")
            return how
        return ""

    def others_write(self) -> None:
        """What no checkpoint is made of takes the free space, or leaves it."""
        free = (self.disk.capacity or 0) - self.disk.used()
        if self.disk.foreign and self.random.random() < 0.5:
            self.disk.foreign = 0
        else:
            self.disk.foreign += self.random.choice((free, free // 2))
        self.say(f"others hold {self.disk.foreign:,} bytes")

    # What a process does.

    def start(self, job: str, number: int | None, saves: int, *, last: bool = False) -> Start:
        label = f"{job or 'plain'}{'' if number is None else number}"
        process = Process(f"{label}#{len(self.starts)}")
        start = Start(job, number, process)
        self.starts.append(start)
        self.scheduler.start(process, lambda: self.life(start, saves, last))
        return start

    def life(self, start: Start, saves: int, last: bool) -> None:
        process = start.process
        storage = Mount(self.disk, process, self.scheduler, Watch(self, start))
        tag = STARTS.get(start.job) or f"{len(self.starts) + self.random.getrandbits(24):08x}"
        directory = Directory(
            storage,
            PATH,
            Holder(start.job, tag, pod=process.name),
            keep=self.keep,
            pause=self.scheduler.sleep,
            clock=lambda: self.scheduler.now,
            lock=Lock(self.scheduler),
        )
        expected = list(self.saved.get(start.job, ()))
        self.say(f"{process.name} begins")
        if last and f"{PATH}/{RESERVE}" in self.disk.files and self.disk.capacity is not None:
            self.disk.foreign += self.disk.capacity - self.disk.used()
        try:
            claim = directory.begin(start.round)
        except (OSError, CheckpointError) as error:
            self.say(f"{process.name} does not begin: {error}")
            if last:
                raise self.broken("Recovers", f"the last start does not begin: {error}") from error
            process.dead = True
            return
        self.began(start, claim)
        start.writes_a_claim = False
        if last:
            self.disk.foreign = 0
        self.scheduler.start(process, lambda: self.beats(directory))
        try:
            directory.tidy()
            self.train(start, directory, storage, expected, saves, last)
        except (OSError, CheckpointError) as error:
            self.say(f"{process.name} ends: {error}")
            if last and not self.others_left_no_room(start, error):
                raise self.broken("Recovers", f"the last start fails: {error}") from error
        else:
            try:
                if self.random.random() < 0.5:
                    directory.end()
                    start.ended = True
            except OSError:
                pass
        process.dead = True

    def beats(self, directory: Directory) -> None:
        while True:
            self.scheduler.sleep(BEAT_SECONDS)
            try:
                if not directory.beat():
                    return
            except (OSError, CheckpointError):
                continue

    def train(
        self,
        start: Start,
        directory: Directory,
        storage: Mount,
        expected: list[Name],
        saves: int,
        last: bool,
    ) -> None:
        process = start.process
        assert start.claim is not None
        good: Name | None = None
        damaged: list[Name] = []
        for name, marker in directory.candidates():
            if isinstance(marker, Marker):
                good = name
                break
            damaged.append(name)
        start.writes_a_claim = True
        directory.forget(damaged)
        start.writes_a_claim, start.good = False, good
        self.say(f"{process.name} resumes from {good}")
        newest = max(expected, default=None)
        if newest and (good is None or good < newest):
            raise self.broken("Saved", f"{process.name} resumes from {good}, and {newest} was saved")
        if good and good not in self.whole():
            raise self.broken("Saved", f"{process.name} resumes from {good}, which is not whole")
        step = good.step if good else 0
        for _ in range(saves):
            self.scheduler.sleep(self.random.choice((0, 1, 10, 40)))
            step += 10
            name = Name(start.claim.token, step)
            try:
                self.save(directory, storage, name, good)
            except StaleRoundError:
                raise
            except (OSError, CheckpointError) as error:
                self.say(f"{process.name}: {name} fails: {error}")
                if last and not self.others_left_no_room(start, error):
                    raise self.broken("Recovers", f"the last start does not save: {error}") from error
                self.scheduler.sleep(self.random.choice((0, 1, 10, 60)))  # until all ranks know
                directory.failed(name)
                if self.random.random() < 0.5:
                    raise
                continue
            good = name
            self.called_saved(start, name)

    def save(self, directory: Directory, storage: Mount, name: Name, good: Name | None) -> None:
        folder = directory.folder(name)
        storage.make_folder(folder)
        directory.make_room(name, good)
        files = {}
        for number in range(SHARDS):
            file = f"__{number}_0.distcp"
            with storage.stream(storage.join(folder, file), "wb") as stream:
                stream.write(SHARD)
            files[file] = File(len(SHARD), 0)
        directory.complete(name, Marker(files, SHARDS))

    # What must hold.

    def began(self, start: Start, claim: Claim) -> None:
        self.say(f"{start.process.name} has begun: {claim.file}, {sorted(map(str, claim.complete or ()))}")
        start.claim = claim
        before = [other for other in self.starts if other is not start and other.claim is not None]
        holder = max((o.claim.token for o in before if o.claim and o.claim.token < claim.token), default=None)
        for other in before:
            if other.claim is None or other.process.dead or other.ended:
                continue
            if other.claim.token == claim.token and other.claim.holder.owner != claim.holder.owner:
                raise self.broken("Alone", f"{other.process.name} and {start.process.name} have one token")
            same = other.job == start.job != ""
            overtaken = any(
                token > other.claim.token
                and (by.job == other.job or token.generation > other.claim.token.generation)
                for by, token in self.claimed
                if by is not start
            )
            well = not (overtaken or other.process.was_stalled or other.process.failed)
            if not same and well and other.claim.token == holder:
                raise self.broken("Alone", f"{start.process.name} begins while {other.process.name} is well")

    def called_saved(self, start: Start, name: Name) -> None:
        self.say(f"{start.process.name} has saved {name}")
        self.saved.setdefault(start.job, []).append(name)
        assert start.claim is not None
        mine = self.generations(start.job)
        for later in self.starts:
            # A later round may have counted it, saved a newer one and removed it, before this is said.
            if (
                later.claim
                and later.claim.token > start.claim.token
                and not any(
                    one >= name and one.token.generation in mine for one in later.claim.complete or ()
                )
            ):
                raise self.broken("Fenced", f"{name} was called saved after {later.process.name} had begun")
        self.all_are_there()

    def others_left_no_room(self, start: Start, error: Exception) -> bool:
        """Whether there is no room because another job could not remove what is beyond ``keep`` before it
        ended, for errors: others do not remove what it has completed."""
        whole = self.whole()
        return (is_full(error) or isinstance(error, NoSpaceError)) and any(
            sum(name.token.generation in self.generations(job) for name in whole) > self.keep + 1
            for job in self.jobs
            if job != start.job
        )

    def generations(self, job: str) -> set[int]:
        return {start.claim.token.generation for start in self.starts if start.claim and start.job == job}

    def all_are_there(self) -> None:
        whole = self.whole()
        for job, names in self.saved.items():
            generations = self.generations(job)
            newest = max(names)
            # A newer one may have been completed by who was killed before it could call it saved.
            if not any(name >= newest and name.token.generation in generations for name in whole):
                raise self.broken("Saved", f"{newest} of job {job!r} was saved, and is not there")

    def whole(self) -> set[Name]:
        """The checkpoints that have a marker and all that it lists."""
        found = {name for path in self.disk.files if (name := parse_name(path.split("/")[1]))}
        return {
            name
            for name in found
            if f"{PATH}/{name}/{MARKER}" in self.disk.files
            and all(
                len(self.disk.files.get(f"{PATH}/{name}/__{number}_0.distcp", b"")) == len(SHARD)
                for number in range(SHARDS)
            )
        }

    def litter(self) -> list[str]:
        found = []
        for path in self.disk.files:
            name = parse_name(path.split("/")[1])
            if path.endswith(".tmp") or (name and f"{PATH}/{name}/{MARKER}" not in self.disk.files):
                found.append(path)
        return found


def play(seed: int) -> History:
    """Raises Broken."""
    history = History(seed)
    rng = random.Random(seed ^ 0x5EED)
    rounds = dict.fromkeys(history.jobs, 0)

    def next_start(job: str, last: bool = False) -> Start:
        rounds[job] += rng.randint(1, 2)
        return history.start(job, rounds[job] if job else None, 2 if last else rng.randint(0, 4), last=last)

    def director() -> None:
        """Starts one after the other, mostly when the one before is dead, sometimes while it still lives."""
        job = rng.choice(history.jobs)
        for _ in range(rng.randint(2, 6)):
            if rng.random() < 0.3:
                job = rng.choice(history.jobs)
            if rng.random() < 0.3:
                next_start(history.jobs[0])  # and another one while it begins
                history.scheduler.sleep(rng.choice((0, 1, 20)))
                job = history.jobs[-1]
            started = next_start(job)
            patience = rng.choice((0.5, 5, 60, 1e6, 1e6))
            waited = 0.0
            while not started.process.dead and waited < patience:
                history.scheduler.sleep(min(1.0, patience))
                waited += 1.0
            if started.job == "" or rng.random() < 0.3:
                started.process.dead = True
        for start in history.starts:
            start.process.dead = True
        history.calm = True
        history.disk.foreign = 0
        for job in history.jobs:
            while_alive = next_start(job, last=True)
            while not while_alive.process.dead:
                history.scheduler.sleep(1.0)

    history.scheduler.start(Process("director"), director)
    level = logging.getLogger("elasticjob.checkpoint").level
    logging.getLogger("elasticjob.checkpoint").setLevel(logging.CRITICAL)
    try:
        history.scheduler.run()
    finally:
        logging.getLogger("elasticjob.checkpoint").setLevel(level)
    history.all_are_there()
    if litter := history.litter():
        raise history.broken("Recovers", f"litter: {litter}")
    return history
