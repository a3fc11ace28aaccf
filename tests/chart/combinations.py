"""The chart's switches, and few sets of values in which each pair of them is in all its states."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tests.chart.helm import merged

DIGEST = "sha256:" + "0" * 64
SCRAPED = {"interval": "15s", "labels": {"example.com/a": "b"}}
SWITCHES: dict[str, dict[str, Any]] = {
    "one pod": {"replicaCount": 1, "leaderElection": {"enabled": False}},
    "other times": {
        "leaderElection": {"leaseDuration": "30s", "renewDeadline": "20s", "retryPeriod": "3s"},
    },
    "no enforcement": {"leaderElection": {"enforce": False}},
    "namespaces": {"watchNamespaces": ["team-a", "team-b"]},
    "another name": {"fullnameOverride": "trainer"},
    "another name of the chart": {"nameOverride": "training"},
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
    "other budget": {
        "podDisruptionBudget": {"maxUnavailable": "50%", "unhealthyPodEvictionPolicy": "IfHealthyBudget"},
    },
    "network policy": {"networkPolicy": {"enabled": True}},
    "more connections": {
        "networkPolicy": {
            "enabled": True,
            "apiServerPorts": [6443],
            "extraIngress": [{"from": [{"podSelector": {}}]}],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 3128}]}],
        },
    },
    "probes from": {"networkPolicy": {"enabled": True, "probesFrom": [{"ipBlock": {"cidr": "10.0.0.0/16"}}]}},
    "metrics from": {
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"example.com/monitoring": "yes"}}}],
        },
        "metrics": {"port": 9091},
    },
    "no metrics": {"metrics": {"enabled": False}},
    "port of metrics": {"metrics": {"port": 9091}},
    "token": {"metrics": {"tokenSecret": {"name": "metrics", "key": "bearer"}}},
    "sums only": {"metrics": {"perJob": False, "maxJobs": 7}},
    "service": {"metrics": {"service": {"enabled": True}}},
    "service monitor": {"metrics": {"serviceMonitor": {"enabled": True, **SCRAPED}}},
    "pod monitor": {"metrics": {"podMonitor": {"enabled": True, **SCRAPED}}},
    "alerts": {
        "metrics": {
            "prometheusRule": {
                "enabled": True,
                "labels": {"example.com/a": "b"},
                "selector": 'job="elasticjob"',
                "runbookUrl": "https://example.com/",
            },
        },
    },
    "dashboard": {
        "metrics": {
            "dashboard": {
                "enabled": True,
                "namespace": "team-a",
                "labels": {"grafana_dashboard": "main"},
                "annotations": {"grafana_folder": "Training"},
            },
        },
    },
    "flow schema": {"flowSchema": {"enabled": True, "nominalConcurrencyShares": 80}},
    "limits": {"limits": {"maxReplicas": 64, "maxSpares": 8}},
    "limits of a namespace": {"limits": {"namespaces": {"team-a": {"maxReplicas": 1}}}},
    "defaults": {
        "jobDefaults": {
            "ttlSecondsAfterFinished": 0,
            "activeDeadlineSeconds": 60,
            "failurePolicy": {"application": {"maxRestarts": 3}},
        }
    },
    "memory checkpoints": {"jobDefaults": {"memoryCheckpoints": {"perPod": "8Gi", "copies": 0}}},
    "defaults of a namespace": {
        "jobDefaults": {
            "namespaces": {
                "team-a": {
                    "ttlSecondsAfterFinished": 3600,
                    "failurePolicy": {"idleDeadlineSeconds": 600},
                    "memoryCheckpoints": {"perPod": "2Gi"},
                },
            },
        },
    },
    "labels and annotations": {
        "commonLabels": {"example.com/owner": "platform"},
        "podLabels": {"example.com/team": "a"},
        "podAnnotations": {"example.com/a": "b"},
        "serviceAccount": {"annotations": {"example.com/role": "trainer"}},
    },
    "kueue": {"kueue": {"enabled": True}},
    "gang": {"gangScheduling": {"kubernetes": True}},
    **{gang: {"gangScheduling": {gang: True}} for gang in ("coscheduling", "volcano")},
    "no notices": {"nodeNotices": {"taints": []}},
    "topology": {"topology": {"keys": ["a.example/row", "rack"]}},
    "all addresses": {"probes": {"address": "[::]", "port": 9090}},
    "pull secrets": {"imagePullSecrets": [{"name": "a"}], "handler": {"image": {"pullPolicy": "Never"}}},
    "registry": {
        "global": {"imageRegistry": "mirror.example:5000"},
        "image": {"repository": "ml/operator", "digest": DIGEST},
        "handler": {"image": {"repository": "ml/handler", "tag": "2"}},
    },
    "registries of their own": {
        "image": {"registry": "own.example", "repository": "ml/operator", "tag": "2", "pullPolicy": "Always"},
        "handler": {
            "image": {"registry": "other.example:5000", "repository": "ml/handler", "digest": DIGEST},
        },
    },
    "no resources": {"resources": None, "topologySpreadConstraints": []},
    "another user": {
        "podSecurityContext": {
            "runAsUser": 1000,
            "seccompProfile": {"type": "Localhost", "localhostProfile": "operator.json"},
        },
        "securityContext": {"readOnlyRootFilesystem": False},
    },
    "priority": {"priorityClassName": "system-cluster-critical"},
    "place": {
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
    },
    "environment": {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]},
    "flags": {"extraArgs": ["--log-level=warning"]},
    "volumes": {
        "extraVolumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
        "extraVolumeMounts": [
            {"name": "authorities", "mountPath": "/etc/authorities", "readOnly": True},
        ],
    },
    "another test": {
        "tests": {
            "image": "registry.example/pytorch",
            "timeoutSeconds": 60,
            "resources": None,
            "podSecurityContext": None,
        },
    },
    "logs": {"logging": {"level": "debug", "format": "json"}},
}  # fmt: skip
"""What each changes, alone."""
EXCLUDED = {
    ("metrics from", "no metrics"): "networkPolicy.metricsFrom is set, but metrics.enabled is false",
    ("service monitor", "pod monitor"): "each pod would be scraped twice",
}
"""Pairs that the chart refuses, and what it says."""
_RESTRICTED = "the tests' namespace takes restricted pods only; test_variants.py renders it with null"
LEFT_OUT = {
    "podSecurityContext.runAsNonRoot": _RESTRICTED,
    "securityContext.allowPrivilegeEscalation": _RESTRICTED,
    "securityContext.capabilities.drop": _RESTRICTED,
}
"""Values that no switch changes, and why."""


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
