"""Failure rules (``spec.failurePolicy.rules``): the first one that matches the root failure decides.

The criteria use only what is known for certain: an unknown exit code matches no rule, and an invalid pattern
matches nothing. Patterns are RE2's, so that a search takes time in proportion to the length of the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import re2

from elasticjob.rounds.causes import Cause
from elasticjob_operator.plan.state.evidence import INFRASTRUCTURE, SCALING, Evidence
from elasticjob_operator.plan.state.model import Rule, RuleAction

EXIT_CODE_CAUSES = frozenset({Cause.WORKER_FAILED, Cause.POD_FAILED, Cause.POD_LOST, Cause.OUT_OF_MEMORY})
"""Causes whose exit code is how a worker or the training container ended by itself."""


def first_matching_rule(rules: Iterable[Rule], evidence: Evidence) -> Rule | None:
    """The first rule that this failure matches. A planned change is no failure."""
    if evidence.account == SCALING:
        return None
    return next((rule for rule in rules if _matches(rule, evidence)), None)


def by_name(rules: Iterable[Rule], name: str) -> Rule | None:
    """The rule of this name, None if it is not there (any more)."""
    return next((rule for rule in rules if name and rule.name == name), None)


def account(rule: Rule | None, evidence: Evidence) -> str:
    """The account that the failure is charged to, "" for none."""
    if rule is not None and rule.action == RuleAction.IGNORE:
        return ""
    if rule is not None and rule.action == RuleAction.EXCLUDE_NODE:
        return INFRASTRUCTURE
    return evidence.account


def describe_effect(rule: Rule | None) -> str:
    """What the rule does, to be appended to the sentence on the failure."""
    if rule is None:
        return ""
    nothing = " (not charged)" if rule.action == RuleAction.IGNORE else ""
    return f"; rule {rule.name}: {rule.action}{nothing}"


def problems(rules: Iterable[Rule]) -> tuple[str, ...]:
    """One message for each invalid pattern."""
    found = []
    for rule in rules:
        problem = _compiled(rule.on_error_pattern)[1]
        if problem:
            found.append(
                f"failurePolicy.rules: onErrorPattern of rule {rule.name} is not a valid RE2 regular "
                f"expression and matches nothing: {problem}"
            )
    return tuple(found)


def _matches(rule: Rule, evidence: Evidence) -> bool:
    if rule.on_worker_exit_codes:
        by_itself = evidence.cause in EXIT_CODE_CAUSES
        return by_itself and evidence.exit_code in rule.on_worker_exit_codes
    if rule.on_pod_reasons:
        return not set(rule.on_pod_reasons).isdisjoint(evidence.reasons)
    pattern = _compiled(rule.on_error_pattern)[0]
    return (
        pattern is not None
        and bool(evidence.error_text)
        and pattern.search(_clean(evidence.error_text)) is not None
    )


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> tuple[Any, str]:
    """The compiled pattern, or None and the error."""
    if not pattern:
        return None, ""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options), ""
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be compiled"
        return None, reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    except UnicodeError as error:
        return None, str(error)


def _clean(text: str) -> str:
    """The text without lone surrogates, which JSON can carry and UTF-8 can't."""
    return text.encode("utf-8", "replace").decode()
