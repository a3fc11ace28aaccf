"""Commands of scenarios about failures: workers, rules, disruptions, and what the status says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from elasticjob.contract.relay import CutOff, RelayReport
from elasticjob.contract.reports import FailureReport
from elasticjob.contract.text import NO_ERROR_TEXT
from elasticjob_operator.plan.state.model import Exit, Job, Participant, Pod
from elasticjob_operator.plan.state.restart_accounts import Charge
from elasticjob_operator.plan.state.status import JobStatus, RoundEnd


class FailureCommands:
    """The part of ``World`` that is about failures."""

    job: Job
    status: JobStatus
    pods: dict[str, Pod]
    leases: dict[str, Participant]
    trace: list[str]
    version: int

    def _join(self, name: str, last: int | None) -> None:
        raise NotImplementedError

    def _set_spec(self, **changes: Any) -> None:
        raise NotImplementedError

    def do_fail(self, *names: str, late: str = "", stays: str = "", **what: str) -> None:
        """A worker of each of these fails: they report it and announce themselves anew, in one write.

        ``exit`` is its code, ``ms`` how long after the barrier it ended, ``error`` its message; ``round`` is
        another than the current one (then ``rank`` says which it had), ``late=yes`` that the round was known
        to be over. ``stays=yes``: the agent gives up and keeps its id. ``text=none``: the script's main
        function is not decorated with @record.
        """
        number = int(what.get("round", self.status.current_round.number))
        ranks = {m.pod_name: m.group_rank for m in self.status.members()}
        error = what.get("error", "ValueError")
        if what.get("text") == "none":
            error = f"exit code {what['exit']}; {NO_ERROR_TEXT}"
        for name in names:
            if not stays:
                self._join(name, number)
            report = FailureReport(
                number,
                int(what.get("rank", ranks.get(name) or 0)),
                error,
                int(what["exit"]) if "exit" in what else None,
                offset_milliseconds=int(what["ms"]) if "ms" in what else None,
                after_round_end=bool(late),
            )
            self.leases[name] = replace(self.leases[name], failure=report)

    def do_relay(self, speaker: str, *names: str, why: str = "", left: str = "", **what: str) -> None:
        """A member passes on what others, which cannot write, have told it: ``why``, and with ``left=yes``
        that they have left the round; ``exit`` is their worker's, ``ms`` as for ``fail``. Without names all
        can write again."""
        now, ranks = self.status.current_round, {m.pod_name: m.group_rank for m in self.status.members()}
        failure = None
        if "exit" in what:
            ms = int(what["ms"]) if "ms" in what else None
            failure = FailureReport(now.number, 0, "ValueError", int(what["exit"]), offset_milliseconds=ms)
        words = [CutOff(ranks[name] or 0, why, bool(left), failure) for name in names]
        report = RelayReport.of(now.nonce, words) if words else None
        self.leases[speaker] = replace(self.leases[speaker], relay=report)

    def do_init(self, name: str, container: str, code: str) -> None:
        """An init container ends the pod before the training container could start."""
        self.pods[name] = replace(
            self.pods[name], running=False, ended=True, exit=Exit(int(code), "Error"), failed_init=container
        )

    def do_restart_in_place(self, name: str, code: str, reason: str = "Error", but: str = "") -> None:
        """The kubelet restarts a container of a pod that others create; its new agent announces itself.
        ``but=unsaid``: the kubelet says so later; ``but=unjoined``: the agent does."""
        pod = self.pods[name]
        if but != "unsaid":
            end = Exit(int(code), reason)
            self.pods[name] = replace(pod, exit=None, last_exit=end, running=True, restarts=pod.restarts + 1)
        if but != "unjoined":
            self._join(name, 0)

    def do_ended(self, name: str, code: str, reason: str) -> None:
        """The kubelet says more of how a container that was given up has ended."""
        self.pods[name] = replace(
            self.pods[name], running=False, ended=True, exit=Exit(int(code), reason), deleting=False
        )

    def do_charges(self) -> None:
        """Say every charge in full."""
        for account in self.status.accounts:
            for c in account.charges:
                node = f" on node {c.node_name}" if c.node_name else ""
                self.trace.append(f"{account.name}: {name_of(c)} {c.cause}{node}: {c.message}")
        self.trace.append(f"restarts: {self.status.restarts}")

    def do_last_failure(self) -> None:
        """Say the last failure as people read it."""
        failure = self.status.last_failure
        if failure is None:
            self.trace.append("there is no failure")
            return
        code = "unknown" if failure.exit_code is None else str(failure.exit_code)
        self.trace.append(
            f"round {failure.round}, {failure.pod_name} rank {failure.group_rank} "
            f"node {failure.node_name or '-'}, exit code {code}: {failure.message}"
        )
        self.trace.append(failure.logs_command)

    def do_why(self) -> None:
        """Say what the history has on why each round was formed, newest first."""
        history = self.status.round_history
        for h, before in zip_longest(history, history[1:]):
            why = (before.end if before is not None else None) or RoundEnd(message="the first round")
            by = f" by rule {why.rule_name}" if why.rule_name else ""
            current = self.status.current_round
            text = current.message if h.number == current.number else why.message
            self.trace.append(f"round {h.number} {h.cause} {why.account or 'uncharged'}{by}: {text}")


def _not_counted(charge: Charge) -> str:
    """Why no limit counts it."""
    if charge.counts:
        return ""
    if charge.during_round is not None:
        return f", beside round {charge.during_round}"
    return f", counted with {charge.counted_with}"


def name_of(charge: Charge) -> str:
    """What the charge is for."""
    return charge.pod_name if charge.round is None else f"round {charge.round}"


def charges(old: JobStatus, new: JobStatus) -> Iterator[str]:
    """What was charged, or moved."""
    before = {name_of(c): (a.name, c.cause) for a in old.accounts for c in a.charges}
    now = {name_of(c): (a.name, c.cause) for a in new.accounts for c in a.charges}
    beside = {name_of(c): _not_counted(c) for a in new.accounts for c in a.charges}
    for key, (account, cause) in now.items():
        if key not in before:
            yield f"charge {account}: {key}{beside[key]}"
        elif before[key] != (account, cause):
            yield f"the charge for {key} moves from {' '.join(before[key])} to {account} {cause}"
    if new.restarts < old.restarts:
        yield f"the charge for {', '.join(before.keys() - now.keys())} is taken back"
