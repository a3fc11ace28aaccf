"""Commands of scenarios about participants: what they announce and report in their Leases."""

from __future__ import annotations

from dataclasses import replace

from elasticjob.contract.participant_record import ParticipantRecord
from elasticjob.contract.reports import RoundReport
from elasticjob_operator.plan.state.model import Job, Participant, Pod
from elasticjob_operator.plan.state.status import JobStatus


class ParticipantCommands:
    """The part of ``World`` that is about participants."""

    job: Job
    status: JobStatus
    pods: dict[str, Pod]
    leases: dict[str, Participant]
    ids: int

    def do_stranger_lease(self, name: str) -> None:
        """A stranger holds the Lease of this name and announces itself in it."""
        self.ids += 1
        record = ParticipantRecord(f"id-{self.ids}", "Joining", "10.0.0.9:4000")
        self.leases[name] = Participant(name, f"stranger-{name}", record)

    def do_join(self, *names: str, last: str = "") -> None:
        """Participants announce themselves with a new id, coming from the round of the record."""
        for name in names:
            self._join(name, int(last) if last else None)

    def do_succeed(self, *names: str) -> None:
        """Participants report that their workers have finished."""
        for name in names:
            lease = self.leases[name]
            assert lease.record is not None
            record = replace(lease.record, state="Succeeded", from_job_uid=self.job.uid)
            record = replace(record, from_round=self.status.current_round.number)
            self.leases[name] = replace(lease, record=record, finished=self.status.current_round.nonce)

    def do_leave(self, *names: str) -> None:
        """Participants say that they end without having succeeded."""
        for name in names:
            lease = self.leases[name]
            assert lease.record is not None
            self.leases[name] = replace(lease, record=replace(lease.record, state="Leaving"))

    def do_establish(self) -> None:
        """The leader reports the round established."""
        self.do_report(self.status.current_round.leader_pod_name, established="yes")

    def do_report(self, *names: str, **what: str) -> None:
        """Members report: ``established=yes missing=a,b silent=a,b leader=lost`` or ``refused``."""
        ranks = {entry.pod_name: entry.group_rank or 0 for entry in self.status.members()}
        for name in names:
            report = RoundReport(
                self.status.current_round.nonce,
                established="established" in what,
                unarrived_ranks=tuple(ranks[pod] for pod in what.get("missing", "").split(",") if pod),
                silent_ranks=tuple(ranks[pod] for pod in what.get("silent", "").split(",") if pod),
                leader_lost="leader" in what,
                connection_refused=what.get("leader") == "refused",
                hung="hung" in what,
                silent_milliseconds=int(what["hung"]) * 1000 if "hung" in what else None,
                message=f"no step for {what['hung']} s" if "hung" in what else "",
            )
            self.leases[name] = replace(self.leases[name], report=report)

    def do_lease_deleted(self, *names: str) -> None:
        """Somebody deletes the Leases of these participants, which write no more."""
        for name in names:
            del self.leases[name]

    def do_garble(self, name: str) -> None:
        """What this participant reports can't be read."""
        self.leases[name] = replace(
            self.leases[name], report=None, report_unreadable=True, problem="round report: not JSON"
        )

    def do_silent(self, name: str, seconds: str) -> None:
        """The observer has seen no change of this Lease for so long."""
        self.leases[name] = replace(self.leases[name], silent=float(seconds), renewed=None)

    def do_listed_again(self, *names: str) -> None:
        """A new watch has listed these Leases: their silence counts from now on, and no renewal was seen."""
        for name in names:
            self.leases[name] = replace(self.leases[name], silent=0.0, renewed=float("inf"))

    def do_namesake(self, name: str, of: str) -> None:
        """This pod announces itself with the id of that one."""
        self.do_join(name)
        record, other = self.leases[name].record, self.leases[of].record
        assert record is not None
        assert other is not None
        self.leases[name] = replace(self.leases[name], record=replace(record, id=other.id))

    def do_garbage(self, name: str) -> None:
        """A participant's record can't be read."""
        self.leases[name] = replace(self.leases[name], record=None, problem="participant record: not JSON")

    def _join(self, name: str, last: int | None) -> None:
        self.ids += 1
        number = self.status.current_round.number if last is None else last
        record = ParticipantRecord(
            f"id-{self.ids}",
            "Joining",
            "127.0.0.1:4000",
            from_job_uid=self.job.uid if number else "",
            from_round=number,
            seen_job_uid=self.job.uid,
            seen_round=self.status.current_round.number,
        )
        old = self.leases.get(name)
        fresh = Participant(name, self.pods[name].uid, record)
        self.leases[name] = replace(old, holder=fresh.holder, record=record, silent=0.0) if old else fresh
