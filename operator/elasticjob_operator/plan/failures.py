"""Accounts: every root failure is charged once, in a window, written ahead with its time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from elasticjob_operator.plan.causes import ACCOUNTS, APPLICATION, INFRASTRUCTURE, Evidence, better
from elasticjob_operator.plan.context import Pass
from elasticjob_operator.plan.model import Limit
from elasticjob_operator.plan.status import Account, Charge, Failure

MAX_CHARGES = 100
"""Charges kept of an account without a window; with one, those inside it are kept."""


def refresh_accounts(p: Pass) -> None:
    """Put the limits in force into the status and drop the charges that are older than their window."""
    old = {a.name: a for a in p.status.accounts}
    limits = {APPLICATION: p.job.spec.application, INFRASTRUCTURE: p.job.spec.infrastructure}
    accounts = []
    for name in ACCOUNTS:
        limit = limits.get(name, Limit())
        charges = old[name].charges if name in old else ()
        if limit.window_seconds is not None:
            since = p.now.wall - timedelta(seconds=limit.window_seconds)
            charges = tuple(c for c in charges if c.time > since)
        keep = MAX_CHARGES if limit.max_restarts is None else max(MAX_CHARGES, limit.max_restarts + 1)
        accounts.append(Account(name, limit.max_restarts, limit.window_seconds, charges[-keep:]))
    p.set(accounts=tuple(accounts))


def note(p: Pass, evidence: list[Evidence]) -> None:
    """Keep the best evidence as the cause of the broken round, and the first failure for people.

    ``status.round.cause`` of a Broken round is the cause so far; it is charged when the next round is
    published, or when every member is accounted for.
    """
    for sign in evidence:
        if better(sign.cause, p.round.cause if p.round.phase == "Broken" else ""):
            p.set_round(cause=sign.cause, account=sign.account, message=sign.message)
            if sign.account in (APPLICATION, INFRASTRUCTURE):
                p.set(
                    last_failure=Failure(
                        sign.pod, p.now.wall, sign.message, sign.rank, sign.exit_code, p.round.number
                    )
                )


def charge_round(p: Pass) -> None:
    """Charge the end of the round to its account, once: the round's number is the key (I7)."""
    if _charged(p, round_number=p.round.number):
        return
    _charge(p, p.round.account, Charge(p.now.wall, round=p.round.number))


def charge_pod(p: Pass, account: str, pod: str, message: str, exit_code: int | None) -> None:
    """Charge a pod that ended before it was ever a member, once."""
    if not _charged(p, pod=pod):
        _charge(p, account, Charge(p.now.wall, pod=pod))
        p.set(last_failure=Failure(pod, p.now.wall, message, exit_code=exit_code))


def exhausted(p: Pass) -> Account | None:
    """The account whose limit is passed, if any."""
    return next((a for a in p.status.accounts if a.limit is not None and len(a.charges) > a.limit), None)


def _charged(p: Pass, round_number: int | None = None, pod: str = "") -> bool:
    return any(
        (pod and c.pod == pod) or (round_number is not None and c.round == round_number)
        for a in p.status.accounts
        for c in a.charges
    )


def _charge(p: Pass, account: str, charge: Charge) -> None:
    accounts = tuple(
        replace(a, charges=(*a.charges, charge)) if a.name == account else a for a in p.status.accounts
    )
    p.set(accounts=accounts, restarts=p.status.restarts + 1)
