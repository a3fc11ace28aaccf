"""The chart's switches, and few sets of values in which each pair of them is in all its states."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tests.chart.helm import merged

SWITCHES: dict[str, dict[str, Any]] = {
    "one pod": {"replicaCount": 1, "leaderElection": {"enabled": False}},
    "other times": {"leaderElection": {"leaseDuration": "30s", "renewDeadline": "20s"}},
    "no enforcement": {"leaderElection": {"enforce": False}},
    "namespaces": {"watchNamespaces": ["team-a", "team-b"]},
    "another name": {"fullnameOverride": "trainer"},
    "no definition": {"crds": {"install": False}},
    "definition goes": {"crds": {"keep": False}},
    "no lease policy": {"leasePolicy": {"enabled": False}},
    "no user roles": {"userRoles": {"create": False}},
    "no nodes": {"rbac": {"readNodes": False}},
    "no roles": {"rbac": {"create": False}},
    "account of others": {"serviceAccount": {"create": False, "name": "made-by-others"}},
    "owner references": {"rbac": {"ownerReferencesPermissionEnforcement": True}},
    "no budget": {"podDisruptionBudget": {"enabled": False}},
    "least available": {"podDisruptionBudget": {"minAvailable": 1}},
    "network policy": {"networkPolicy": {"enabled": True}},
    "no metrics": {"metrics": {"enabled": False}},
    "port of metrics": {"metrics": {"port": 9091}},
    "sums only": {"metrics": {"perJob": False, "maxJobs": 7}},
    "service": {"metrics": {"service": {"enabled": True}}},
    "service monitor": {"metrics": {"serviceMonitor": {"enabled": True, "interval": "15s"}}},
    "pod monitor": {"metrics": {"podMonitor": {"enabled": True, "labels": {"example.com/a": "b"}}}},
    "alerts": {"metrics": {"prometheusRule": {"enabled": True, "runbookUrl": "https://example.com/"}}},
    "dashboard": {"metrics": {"dashboard": {"enabled": True, "namespace": "team-a"}}},
    "flow schema": {"flowSchema": {"enabled": True}},
    "limits": {"limits": {"maxReplicas": 64, "maxSpares": 8}},
    "defaults": {
        "jobDefaults": {
            "ttlSecondsAfterFinished": 0,
            "activeDeadlineSeconds": 60,
            "failurePolicy": {"application": {"maxRestarts": 3}},
        }
    },
    "labels": {"commonLabels": {"example.com/owner": "platform"}, "podLabels": {"example.com/team": "a"}},
    "kueue": {"kueue": {"enabled": True}},
    "gang": {"gangScheduling": {"kubernetes": True}},
    "no notices": {"nodeNotices": {"taints": []}},
    "all addresses": {"probes": {"address": "[::]", "port": 9090}},
    "pull secrets": {"imagePullSecrets": [{"name": "a"}], "handler": {"image": {"pullPolicy": "Never"}}},
    "registry": {
        "global": {"imageRegistry": "mirror.example:5000"},
        "image": {"repository": "ml/operator"},
        "handler": {"image": {"repository": "ml/handler"}},
    },
    "no resources": {"resources": None, "topologySpreadConstraints": []},
    "logs": {"logging": {"level": "debug", "format": "json"}},
}  # fmt: skip
"""What each changes, alone."""
EXCLUDED = frozenset({("service monitor", "pod monitor")})
"""Pairs that the chart refuses (``test_wrong_values_are_refused_by_name``)."""


ROWS = 9
"""A switch is on in five of the sets 1 to 8, and in no other switch's five. So two of them are both on in one
set at least, as 5 + 5 > 8, each is on without the other in one, and both are off in set 0. It is enough for
56 switches."""


def covering() -> list[frozenset[str]]:
    """Sets of switches that are on, so that for each two of them both, either and none are on in one of the
    sets. Always the same."""
    columns = combinations(range(1, ROWS), (ROWS + 1) // 2)
    on_in = dict(zip(SWITCHES, columns, strict=False))
    rows = [frozenset(name for name, rows in on_in.items() if number in rows) for number in range(ROWS)]
    for pair in EXCLUDED:
        both = [row for row in rows if row.issuperset(pair)]
        rows = [row for row in rows if row not in both] + [row - {one} for row in both for one in pair]
    return rows


def values(on: frozenset[str]) -> dict[str, Any]:
    """The chart's values with these switches on."""
    result: dict[str, Any] = {}
    for name, change in SWITCHES.items():
        if name in on:
            result = merged(result, change)
    return result
