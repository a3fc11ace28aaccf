"""The memory of a training run's agents, in which ``Checkpoints`` saves at each step.

All ranks save, skip and give up together: one small collective per save says whether the copies of the save
before have ended on all ranks, and well. So no rank waits for a copy, and all do the same.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan

from elasticjob.checkpoint.errors import CheckpointError
from elasticjob.checkpoint.memory_load import MemoryReader, Pieces, WholeIndex
from elasticjob.checkpoint.memory_map import Mappings
from elasticjob.checkpoint.memory_piece import Content, PieceError
from elasticjob.checkpoint.ranks import Ranks
from elasticjob.checkpoint.records import Name, Token
from elasticjob.checkpoint.share import PlannedOnce, is_as_before
from elasticjob.checkpoint.state import load
from elasticjob.checkpoint.trust import Planner
from elasticjob.contract.names import MEMORY_AGENT_ENV
from elasticjob.memory import decide
from elasticjob.memory.client import Agent, AgentError, State
from elasticjob.memory.decide import Candidate
from elasticjob.memory.pieces import Inventory, PieceName, Save
from elasticjob.memory.saving import Saves
from elasticjob.worker.script_log import ScriptLog

log = ScriptLog("elasticjob.checkpoint")

_open: list[MemoryTier] = []
"""The one that this process has: its agent keeps the pieces of one folder of checkpoints."""


def open_memory(ranks: Ranks, timeout: float, token: Token, path: str) -> MemoryTier | None:
    """The memory of all ranks' agents; None, with a line in the log, if not all ranks have one. All ranks
    call it together. It gets a process group of its own: a save to the folder uses that of ``ranks`` in a
    thread, while training goes on."""
    agent: Agent | None = None
    problem = "the job has no memory for checkpoints"
    if _open:
        problem = "another Checkpoints of this script has it"
    elif where := os.environ.get(MEMORY_AGENT_ENV):
        try:
            agent = Agent(where)
            problem = "" if agent.round == token.round else f"torchrun is in round {agent.round}"
        except AgentError as error:
            problem = str(error)
    said = ranks.everywhere((problem, agent.opening if agent is not None else 0))
    problems = [problem for problem, _ in said]
    if agent is not None and not any(problems):
        _open.append(MemoryTier(agent, Ranks(timeout), token, path, said[0][1]))
        return _open[0]
    if agent is not None:
        agent.close()
    if ranks.rank == 0:
        log.info(f"no memory checkpoints: {_first(problems)}; saves go to {path} only")
    return None


class MemoryTier:
    """Saves of one rank in its agent's memory, and of all ranks in that of all agents. Its methods that are
    marked so are called by all ranks together."""

    def __init__(self, agent: Agent, ranks: Ranks, token: Token, path: str, opening: int) -> None:
        """``opening``: the number that rank 0's agent has given to this one."""
        self._agent = agent
        self._ranks = ranks
        self._token = token
        self._opening = opening
        self._folder = f"{zlib.crc32(path.encode()):08x}"
        self._path = path
        self._planner = PlannedOnce()
        self._undivided: SavePlan | None = None
        """The plan of a save that was skipped, if that state was not like the one before."""
        self._final: SavePlan | None = None
        self._metadata = b""
        """DCP's, pickled, on rank 0."""
        self._buffers = Mappings()
        self._saves = Saves()
        self._problem = ""
        """Why this rank could not save last."""
        self._safe = True
        """Whether all pieces have the copies that they should have."""
        self.off = ""
        """Why nothing is saved any more, on all ranks; "" while they save."""
        self._needless = False
        """Whether the agent has heard that nothing of it is needed."""
        self.saved = self.skipped = 0
        """How many saves there were, and how many were skipped because copies were under way."""

    # -- saving ------------------------------------------------------------------------------------------

    def save(self, step: int, state: Mapping[str, Any]) -> bool:
        """Save the entries of a state; False if this save is skipped. Together."""
        if self.off or step <= self._saves.step:
            return False
        try:
            return self._save(step, state)
        finally:
            self._planner.let_go()

    def _save(self, step: int, state: Mapping[str, Any]) -> bool:
        plan = self._plan(state)
        last = self._state_of_last()
        usable, ended, well, safe, same = self._ranks.all_say(
            not last.off, last.ended, not last.why, not last.alone, is_as_before(plan)
        )
        if not usable:
            self._switch_off(last.off)
            return False
        if not self._saves.may_begin(ended, well):
            self.skipped += 1
            self._say_skipped()
            return False
        self._say_safe(safe, last.alone)
        if not same:
            self._divide(plan)
        self._write(step)
        self.saved += 1
        return True

    def await_copies(self, seconds: float) -> None:
        """Wait until the copies of the last save have ended here, at most this long."""
        last = self._saves.last
        if last is not None and not self.off:
            try:
                self._agent.await_copy(last, seconds)
            except AgentError as error:
                log.debug(f"the copies of {last} are not awaited: {error}")

    def all_stay(self) -> bool:
        """Whether all pods go on in the next round, and with memory for checkpoints. Together."""
        last = self._state_of_last()
        (stay,) = self._ranks.all_say(not self.off and not last.off and last.all_stay)
        return stay

    def is_enough(self, step: int, seconds: float) -> bool:
        """Whether training can stop after ``step`` with what is in memory, if all pods stay: all ranks have
        saved it, and another agent has a copy of each piece in time. Together."""
        self.await_copies(seconds)
        saved = self._saves.last is not None and self._saves.last.save.step == step
        last = self._state_of_last()
        enough = all(self._ranks.all_say(saved and not last.off, last.copied))
        if not enough and self._ranks.rank == 0:
            log.info(f"step {step} is saved to {self._path}, too: not every rank's part has a copy yet")
        return enough

    def _plan(self, state: Mapping[str, Any]) -> SavePlan:
        """This rank's plan. A rank that cannot plan must not leave the others alone in a collective."""
        try:
            self._planner.set_up_planner(dict(state), is_coordinator=self._ranks.rank == 0)
            plan = self._planner.create_local_plan()
        except Exception as error:  # noqa: BLE001  # a save to the storage raises it
            self._problem = f"its state cannot be saved: {error}"
            return SavePlan([])
        if self._undivided is None or not is_as_before(plan):
            self._undivided = None if is_as_before(plan) else plan
            return plan
        return self._undivided

    def _state_of_last(self) -> State:
        """Whether this rank can save, and how the copy of the save before has ended."""
        if self._problem:
            return State(self._problem)
        try:
            return self._agent.state_of(self._saves.last)
        except AgentError as error:
            return State(str(error))

    def _say_safe(self, safe: bool, alone: str) -> None:
        """Say when pieces begin to have no copies, and when they have them again. Together."""
        if safe == self._safe:
            return
        self._safe = safe
        if safe:
            self._say("every rank's part of the memory checkpoints has a copy again")
            return
        reasons = self._ranks.everywhere(alone)
        count = sum(1 for reason in reasons if reason)
        self._say(
            f"the parts of {count} of {len(reasons)} ranks have no copy in memory: {_first(reasons)}; "
            f"if such a pod is lost, training goes on with what {self._path} has"
        )

    def _say(self, text: str) -> None:
        if self._ranks.rank == 0:
            log.warning(text)

    def _divide(self, plan: SavePlan) -> None:
        """Divide a state that is not like the one before. Together."""

        def divide(given: list[tuple[SavePlan, str]]) -> list[SavePlan]:
            pods = [pod for _, pod in given]
            plans = [one for one, _ in given]
            divided, metadata = self._planner.create_global_plan(plans, pods if any(pods) else ())
            self._metadata = pickle.dumps(metadata)
            return divided

        self._final = self._planner.finish_plan(self._ranks.divided((plan, self._agent.apart), divide))
        self._undivided = None

    def _write(self, step: int) -> None:
        """Write this rank's piece and hand it over. If that fails, all ranks hear of it at the next save. For
        example, torch cannot copy tensors of some types, or for lack of a GPU's memory."""
        assert self._final is not None
        save = Save(*self._token, self._opening, step, self._ranks.size)
        name = PieceName(self._agent.job, self._folder, save, self._ranks.rank)
        stale = self._saves.begin(name)
        try:
            content = Content(self._planner, self._final.items, self._metadata, name)
            self._buffers.drop_smaller(content.size)  # before: the agent asks how much memory is free
            descriptor = self._agent.lend(name.rank, content.size, self._saves.complete, stale)
            try:
                content.write(self._buffers.get(descriptor, content.devices))
                self._agent.take(name, content.size, descriptor)
            finally:
                os.close(descriptor)
        except (AgentError, OSError, RuntimeError) as error:
            self._problem = str(error) or type(error).__name__

    def _switch_off(self, problem: str) -> None:
        """Say once, for all ranks, why nothing is saved to memory any more in this round. Together."""
        self.off = _first(self._ranks.everywhere(problem)) or "it was switched off"
        self._buffers.clear()
        if self._ranks.rank == 0:
            log.warning(
                f"no more memory checkpoints in this round: {self.off}; saves go to {self._path} only"
            )

    def stored(self, step: int) -> None:
        """The folder has this step. If nothing more is saved to memory, its agent may let go of what it has
        up to that: training needs the memory."""
        if not self.off or self._needless or step < self._saves.step:
            return
        self._needless = True
        try:
            self._agent.resumed(self._folder, None, self._opening + 1)  # none of this opening is needed
        except AgentError as error:
            log.debug(f"the agent keeps what it has in memory: {error}")

    # -- resuming ----------------------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """The saves of this generation that the members hold, the newest first. Together."""
        found = self._ranks.everywhere(self._inventory())
        if problem := _first([one if isinstance(one, str) else "" for one in found]):
            if self._ranks.rank == 0:
                log.warning(f"no rank resumes from memory: {problem}")
            return []
        inventories = [one for one in found if not isinstance(one, str)]
        self._mine = inventories[self._ranks.rank].agent
        everything = decide.candidates(inventories, self._folder)
        return [one for one in everything if one.save.generation == self._token.generation]

    def _inventory(self) -> Inventory | str:
        try:
            return self._agent.inventory()
        except AgentError as error:
            return str(error)

    def load(self, state: dict[str, Any], candidate: Candidate, planner: Planner) -> int | str:
        """Load ``state``. Returns how many pieces ranks have got from other pods, or why a piece cannot be
        read: then nothing of the state has changed. Raises what DCP raises otherwise. Together."""
        seconds = self._ranks.timeout / 2  # ranks that need no piece wait for those that do
        pieces = Pieces(self._agent, self._mine, candidate, self._ranks.rank, seconds)
        try:
            return self._load(state, pieces, str(candidate.save), planner)
        finally:
            pieces.close()

    def _load(self, state: dict[str, Any], pieces: Pieces, what: str, planner: Planner) -> int | str:
        shares = self._ranks.everywhere(pieces.read_share())
        if problem := next((share for share in shares if isinstance(share, str)), ""):
            return problem
        found = (share for share in shares if not isinstance(share, str))
        index = WholeIndex(found, what, pieces.near())
        try:
            self._ranks.together(
                partial(
                    load,
                    state,
                    storage_reader=MemoryReader(pieces, index),
                    planner=planner,
                    process_group=self._ranks.group,
                )
            )
        except CheckpointException as error:
            return _problem_of(error)
        for problem in pieces.passed_over:
            log.warning(f"passed over a piece: {problem}")
        return sum(self._ranks.everywhere(len(pieces.from_peers)))

    def resumed(self, save: Save | None) -> None:
        """All ranks have resumed, from this save in memory or (None) from elsewhere: agents let go of the
        rest. What is saved from now on may be another state of the same steps as before. Together."""
        if self._saves.step >= 0:
            opening = self._ranks.agreed(self._open_again)
            if opening:
                self._opening, self._saves = opening, Saves()
        try:
            self._agent.resumed(self._folder, save, self._opening)
        except AgentError as error:
            self._problem = str(error)

    def _open_again(self) -> int:
        """The number of a new opening; 0 if there is none, and then the next save is refused."""
        try:
            return self._agent.open()
        except AgentError as error:
            self._problem = str(error)
            return 0

    def _say_skipped(self) -> None:
        """Once for each doubling: what ends a round leaves no time to say it."""
        if self._ranks.rank == 0 and self.skipped.bit_count() == 1:
            log.info(f"memory checkpoints: {self.saved} saved, {self.skipped} skipped while copies were sent")

    def forget(self) -> None:
        """In a forked process: let go of what is the parent's, which would live as long as this process."""
        self._buffers.forget()
        self._agent.close()

    def close(self) -> None:
        """End the connection to the agent, which keeps what is saved."""
        self._buffers.clear()
        self._agent.close()
        if self in _open:
            _open.remove(self)


def name_of(candidate: Candidate) -> Name:
    """What a checkpoint of the storage of the same moment would be called: the greater one is newer."""
    save = candidate.save
    return Name(Token(save.generation, save.round), save.step)


def _problem_of(error: CheckpointException) -> str:
    """Why a piece cannot be read. Raises the error if that is not what is wrong."""
    failures = {rank: failure for rank, (failure, _) in error.failures.items()}
    for failure in failures.values():
        if isinstance(failure, CheckpointError) and not isinstance(failure, PieceError):
            raise failure from error
    for rank, failure in failures.items():
        if isinstance(failure, PieceError):
            return f"rank {rank} cannot read it: {failure}"
    raise error


def _first(problems: list[str]) -> str:
    """The first problem, and whose it is."""
    return next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), "")


def _forked() -> None:
    while _open:
        _open.pop().forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
