"""``python -m tests.operator_rights``: compare the operator's rights with what the tests have shown it uses.

Whatever ran since ``build/operator-rights`` was removed counts; `make test` begins with that and ends with
this command. It fails for a right of the chart that no test has used and for a request that RBAC refused.
"""

# shows: it has more rights than it needs

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from charts.generate import MANIFESTS, ROOT
from devcluster.existing import existing_kubeconfig

NOTES = ROOT / "build" / "operator-rights"
ELECTION_ROLE = "leader-election"
_ELECTION_LEASES = ("elasticjob", "elasticjob-operator")

HELD: dict[tuple[str, str, str], str] = {}
"""Rights that are needed although nothing asks for them, or that only `make test-slow` shows, and why."""


@dataclass(frozen=True, order=True)
class Right:
    """``role`` is the last part of its name where there are several: "", "nodes", "leader-election"."""

    role: str
    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        where = f" ({self.role})" if self.role else ""
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}{where}"


@dataclass
class Used:
    """What operators have asked the API server for."""

    granted: Counter[Right] = field(default_factory=Counter)
    denied: Counter[Right] = field(default_factory=Counter)


def rights() -> set[Right]:
    """What the chart gives the operator."""
    every = [one for one in yaml.safe_load_all(MANIFESTS.read_text()) if one]
    bound = {
        one["roleRef"]["name"]
        for one in every
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and one["subjects"][0]["kind"] == "ServiceAccount"
    }
    return {
        Right(_part(one["metadata"]["name"]), group, resource, verb)
        for one in every
        if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] in bound
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _part(role: str) -> str:
    return role.removeprefix("elasticjob").lstrip("-")


def note(logs: Iterable[Path], users: Iterable[str], denials: bool = True) -> None:
    """Write down what these users have done, by the audit logs of one cluster."""
    used = Used()
    for log in logs:
        if log.exists():
            with log.open() as lines:
                count(used, lines, frozenset(users), denials)
    NOTES.mkdir(parents=True, exist_ok=True)
    found = {
        what: [
            [right.role, right.group, right.resource, right.verb, times] for right, times in counted.items()
        ]
        for what, counted in (("granted", used.granted), ("denied", used.denied))
    }
    (NOTES / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.json").write_text(json.dumps(found))


def count(used: Used, lines: Iterable[str], users: frozenset[str], denials: bool = True) -> None:
    """Add the lines of an audit log."""
    for line in lines:
        if not any(user in line for user in users):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the end of a log whose server was killed
        if event["user"].get("username") not in users or event.get("userAgent", "").startswith("devcluster"):
            continue  # another client's, or a test's with the operator's token
        if "objectRef" not in event:
            continue  # every client does discovery
        # Who is turned away before the authorizer was asked, by flow control for one, has no such annotation.
        if event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow":
            used.granted.update(rights_of(event))
        elif denials and event.get("responseStatus", {}).get("code") == 403:
            used.denied.update(rights_of(event))


def rights_of(event: dict[str, Any]) -> Iterator[Right]:
    """The rights that a request has needed. The Lease of the election has a role of its own."""
    about = event["objectRef"]
    resource = "/".join(about[key] for key in ("resource", "subresource") if about.get(key))
    election = resource == "leases" and about.get("name") in _ELECTION_LEASES
    role = ELECTION_ROLE if election else "nodes" if resource == "nodes" else ""
    yield Right(role, about.get("apiGroup", ""), resource, event["verb"])
    if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201:
        # A server-side apply that has made the object: the log has it under one verb only.
        yield Right(role, about.get("apiGroup", ""), resource, "create")


def noted() -> Used:
    """All that was written down."""
    used = Used()
    for file in sorted(NOTES.glob("*.json")):
        found = json.loads(file.read_text())
        for what, counted in (("granted", used.granted), ("denied", used.denied)):
            for *right, times in found[what]:
                counted[Right(*right)] += times
    return used


def problems(given: set[Right], used: Used) -> Iterator[str]:
    """What is wrong, a line each."""
    held = {right for right in given if (right.group, right.resource, right.verb) in HELD}
    for right in sorted(given - set(used.granted) - held):
        yield f"never used: {right}"
    for right in sorted(set(used.granted) - given):
        yield f"used, and not in {MANIFESTS.relative_to(ROOT)}: {right}"
    # What is given and was refused all the same met an API server that had just started: its authorizer has
    # yet to hear of roles and bindings.
    for right in sorted(set(used.denied) - given):
        yield f"refused: {right} ({used.denied[right]} times)"


def main() -> None:
    """Entry point."""
    if existing_kubeconfig() is not None:
        print("the operator's rights are not compared: its requests stand in the user's own audit log")
        return
    used = noted()
    if not used.granted:
        sys.exit(f"no test with an operator has left its notes in {NOTES.relative_to(ROOT)}")
    given = rights()
    for right in sorted(given):
        reason = HELD.get((right.group, right.resource, right.verb), "")
        print(f"{used.granted[right]:>8}  {right}{'  - ' + reason if reason else ''}")
    found = list(problems(given, used))
    if found:
        sys.exit("\n".join(found))
    print(f"the operator's {len(given)} rights are what {sum(used.granted.values())} requests have needed")


if __name__ == "__main__":
    main()
