"""How the operator runs: from the command line, or from the environment under ``kopf run``.

Leader election is off by default, because an operator that is run by hand is usually the only one; the chart
turns it on. The flags have the names that ``kube-controller-manager`` gives them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticjob import __version__
from elasticjob_operator.leadership.core import Place, Timing
from elasticjob_operator.logs import FORMATS, LEVELS, LogSettings
from elasticjob_operator.observe.spec import JobDefaults, memory_bytes
from elasticjob_operator.plan.state.model import CopySpread, GangScheduling

NAMESPACES_ENV = "ELASTICJOB_NAMESPACES"
LEADER_ELECT_ENV = "ELASTICJOB_LEADER_ELECT"
PROBES_ENV = "ELASTICJOB_HEALTH_PROBE_BIND_ADDRESS"
METRICS_ENV = "ELASTICJOB_METRICS_BIND_ADDRESS"
METRICS_PER_JOB_ENV = "ELASTICJOB_METRICS_PER_JOB"
METRICS_MAX_JOBS_ENV = "ELASTICJOB_METRICS_MAX_JOBS"
METRICS_TOKEN_FILE_ENV = "ELASTICJOB_METRICS_TOKEN_FILE"
NOTICE_TAINTS_ENV = "ELASTICJOB_NODE_NOTICE_TAINTS"
TOPOLOGY_ENV = "ELASTICJOB_TOPOLOGY_KEYS"
LOG_LEVEL_ENV = "ELASTICJOB_LOG_LEVEL"
LOG_FORMAT_ENV = "ELASTICJOB_LOG_FORMAT"
KUEUE_ENV = "ELASTICJOB_KUEUE"
GANG_ENV = "ELASTICJOB_GANG_SCHEDULING"
HANDLER_IMAGE_ENV = "ELASTICJOB_HANDLER_IMAGE"
HANDLER_PULL_POLICY_ENV = "ELASTICJOB_HANDLER_IMAGE_PULL_POLICY"
LEASE_NAME = "elasticjob-operator"
HANDLER_IMAGE = f"ghcr.io/elasticjob/elasticjob-handler:{__version__}"

TOPOLOGY = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    *(f"topology.k8s.aws/network-node-layer-{layer}" for layer in range(1, 5)),
    *(f"network.topology.nvidia.com/{tier}" for tier in ("core", "spine", "leaf", "accelerator")),
    "nvidia.com/gpu.clique",
    "cloud.google.com/gce-topology-host",
    "kubernetes.io/hostname",
)
"""Labels of nodes that clouds, Kubernetes and NVIDIA's Topograph set, from coarse to fine."""

NOTICE_TAINTS = (
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "remediator.kubernetes.azure.com/unschedulable",
)
"""Keys of taints that say that a node is about to go, by those that then evict its pods. Not among them are
those that say only that it may (DeletionCandidateOfClusterAutoscaler, rebalance-recommendation)."""

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_TTL_ENV = "ELASTICJOB_DEFAULT_TTL_SECONDS_AFTER_FINISHED"
DEFAULT_DEADLINE_ENV = "ELASTICJOB_DEFAULT_ACTIVE_DEADLINE_SECONDS"
DEFAULT_LIMITS_ENV = "ELASTICJOB_DEFAULT_FAILURE_POLICY"
DEFAULT_MEMORY_ENV = "ELASTICJOB_DEFAULT_MEMORY_CHECKPOINTS"
NAMESPACE_DEFAULTS_ENV = "ELASTICJOB_NAMESPACE_DEFAULTS"
_OF_A_NAMESPACE = {"ttlSecondsAfterFinished": 0, "activeDeadlineSeconds": 1}
_MAX_NUMBER = 2**31 - 1
"""The largest number that the resource definition allows."""
_ACCOUNTS = ("application", "infrastructure", "preemption")
_ACCOUNT_FIELDS = {"maxRestarts": 0, "windowSeconds": 1}
_OTHER_LIMITS = {"maxRoundsWithoutProgress": 1, "hangTimeoutSeconds": 1, "idleDeadlineSeconds": 1}
"""Fields of a failure policy, and the least of each."""
_PULL_POLICIES = ("", "Always", "IfNotPresent", "Never")
_GANGS = tuple(gang.value for gang in GangScheduling if gang != GangScheduling.NONE)
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LEAST_TOKEN = 16
_TOKEN = re.compile(rf"[!-~]{{{_LEAST_TOKEN},4096}}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|)")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}


_NO_METRICS = "off"
_OFF = "off"
"""In place of a list of keys: none."""


@dataclass(frozen=True)
class MetricsSettings:
    """Where metrics are served, and how many."""

    served: bool = True
    address: tuple[str, int] | None = None
    """Host and port; None: those of the probes."""
    per_job: bool = True
    """Whether jobs have series of their own,"""
    max_jobs: int = 1_000
    """and how many."""
    token_file: Path | None = None
    """Where the token is that who asks has to send; None: all may ask."""


@dataclass(frozen=True)
class Settings:
    """Times are seconds."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty: all."""
    relist_seconds: float = 300.0
    """How often the list of jobs is taken from the API server (jittered): it finds what a watch missed."""
    max_passes: int = 64
    """Passes of different jobs at a time. One that waits long for the API server gives its turn back."""
    max_silence: float = 180.0
    """A watch that has brought nothing for this time, not even a bookmark, fails the probe (``health``)."""
    max_pass: float = 600.0
    """So does a pass over a job, or a step of the election, that takes longer while no request fails."""
    probes: tuple[str, int] | None = None
    """Host and port to serve the probes on; None: nowhere."""
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()  # noqa: RUF009 (frozen)
    handler_image: str = HANDLER_IMAGE
    """What the handler is copied from into the pods of jobs, in place of being in the user's image."""
    handler_pull_policy: str = ""
    """When kubelets pull it: Always, IfNotPresent or Never; empty: as Kubernetes decides by the tag."""
    job_defaults: JobDefaults = JobDefaults()  # noqa: RUF009 (frozen)
    """What holds for jobs that do not say it."""
    topology: tuple[str, ...] = TOPOLOGY
    """Labels of nodes that say where these are in the network, coarse to fine; empty: ranks go by slot."""
    notice_taints: tuple[str, ...] = NOTICE_TAINTS
    """Keys of taints that say that a node is about to go; empty: none is heeded."""
    kueue: bool = False
    """Jobs with the label of a queue wait for Kueue to admit them."""
    gang_scheduling: tuple[str, ...] = ()
    """The PodGroups that jobs may ask for: values of spec.gangScheduling."""
    election: Place | None = None
    """The Lease that decides which of several processes acts; None: this one does."""


class BadSetting(ValueError):
    """A flag or variable that can't be used: what was found, what was expected."""


def from_environment(
    environ: Mapping[str, str] = os.environ, flags: Mapping[str, str | None] | None = None
) -> Settings:
    """The settings. ``ELASTICJOB_NAMESPACES`` is a list with commas, absent for all.
    ``ELASTICJOB_HANDLER_IMAGE`` is the image of the handler that belongs to this operator.

    ``ELASTICJOB_LEADER_ELECT`` (true or false) and the other variables are the flags in capitals;
    ``flags`` are those of the command line by their names without dashes, None where not given: they win.
    Raises BadSetting.
    """
    given = dict(environ)
    given.update({f"ELASTICJOB_{flag.upper()}": value for flag, value in (flags or {}).items() if value})
    names = given.get(NAMESPACES_ENV, "").split(",")
    namespaces = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    elect = _truth(given, LEADER_ELECT_ENV, default=False)
    pull_policy = given.get(HANDLER_PULL_POLICY_ENV, "").strip()
    if pull_policy not in _PULL_POLICIES:
        raise BadSetting(
            f"{HANDLER_PULL_POLICY_ENV} must be Always, IfNotPresent or Never, found {pull_policy!r}"
        )
    return Settings(
        namespaces=namespaces,
        handler_image=given.get(HANDLER_IMAGE_ENV, "").strip() or HANDLER_IMAGE,
        handler_pull_policy=pull_policy,
        job_defaults=JobDefaults(
            ttl_after_finished=_number(given, DEFAULT_TTL_ENV, 0),
            active_deadline=_number(given, DEFAULT_DEADLINE_ENV, 1),
            limits=_limits(given.get(DEFAULT_LIMITS_ENV, "").strip()),
            memory_checkpoints=_memory_checkpoints(given.get(DEFAULT_MEMORY_ENV, "").strip()),
            namespaces=_namespace_defaults(given.get(NAMESPACE_DEFAULTS_ENV, "").strip()),
        ),
        topology=_keys(given, TOPOLOGY_ENV, TOPOLOGY, "labels", "topology.kubernetes.io/zone"),
        notice_taints=_keys(given, NOTICE_TAINTS_ENV, NOTICE_TAINTS, "taints", "karpenter.sh/disrupted"),
        kueue=_truth(given, KUEUE_ENV, default=False),
        gang_scheduling=_gangs(given),
        election=_election(given) if elect else None,
        probes=_address(given, PROBES_ENV),
        metrics=_metrics(given),
        log=LogSettings(
            level=_one_of(given, LOG_LEVEL_ENV, LEVELS, LogSettings.level),
            format=_one_of(given, LOG_FORMAT_ENV, FORMATS, LogSettings.format),
        ),
    )


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise BadSetting(f"{name} must be true or false, found {text!r}")
    return text == "true" if text else default


def _one_of(given: Mapping[str, str], name: str, words: tuple[str, ...], default: str) -> str:
    text = given.get(name, "").strip().lower()
    if text and text not in words:
        raise BadSetting(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, found {text!r}")
    return text or default


def _metrics(given: Mapping[str, str]) -> MetricsSettings:
    served = given.get(METRICS_ENV, "").strip().lower() != _NO_METRICS
    text = given.get(METRICS_MAX_JOBS_ENV, "").strip() or str(MetricsSettings.max_jobs)
    if not (text.isascii() and text.isdigit()):
        raise BadSetting(f"{METRICS_MAX_JOBS_ENV} must be a whole number of jobs, found {text!r}")
    return MetricsSettings(
        served=served,
        address=_address(given, METRICS_ENV) if served else None,
        per_job=_truth(given, METRICS_PER_JOB_ENV, default=MetricsSettings.per_job),
        max_jobs=int(text),
        token_file=_token_file(given.get(METRICS_TOKEN_FILE_ENV, "").strip()),
    )


def _token_file(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text)
    try:
        read_token(path)
    except OSError as error:
        raise BadSetting(
            f"{METRICS_TOKEN_FILE_ENV} must be a file with a token, found {text!r}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise BadSetting(f"{METRICS_TOKEN_FILE_ENV}: {error}") from error
    return path


def read_token(path: Path) -> str:
    """The token in the file. Raises OSError, or ValueError where there is no usable one."""
    token = path.read_text(encoding="utf-8").strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{path} must have a token of {_LEAST_TOKEN} or more printable ASCII characters")
    return token


def _keys(
    given: Mapping[str, str], name: str, default: tuple[str, ...], what: str, example: str
) -> tuple[str, ...]:
    text = given.get(name, "").strip()
    if not text:
        return default
    if text.lower() == _OFF:
        return ()
    keys = [key.strip() for key in text.split(",")]
    for key in keys:
        if not _KEY.fullmatch(key):
            expected = f"must be keys of {what} with commas between them, such as {example}, or off"
            raise BadSetting(f"{name} {expected}; found {key!r}")
    return tuple(dict.fromkeys(keys))


def _gangs(given: Mapping[str, str]) -> tuple[str, ...]:
    names = [name.strip() for name in given.get(GANG_ENV, "").split(",") if name.strip()]
    for name in names:
        if name not in _GANGS:
            expected = f"must be some of {', '.join(_GANGS)} with commas between them"
            raise BadSetting(f"{GANG_ENV} {expected}; found {name!r}")
    return tuple(dict.fromkeys(names))


def _number(given: Mapping[str, str], name: str, least: int) -> int | None:
    text = given.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= _MAX_NUMBER:
        above = f"from {least} " if least else ""
        raise BadSetting(
            f"{name} must be a whole number of seconds {above}up to {_MAX_NUMBER}, found {text!r}"
        )
    return int(text)


def _limits(text: str) -> dict[str, Any]:
    """The limits of a failure policy, as JSON. Rules and fencing are each job's own."""
    if not text:
        return {}
    found = _json(text, DEFAULT_LIMITS_ENV, '{"application": {"maxRestarts": 3}}')
    return _checked_limits(found, DEFAULT_LIMITS_ENV)


def _namespace_defaults(text: str) -> dict[str, JobDefaults]:
    """Read the defaults of namespaces, as JSON in the words of the chart's ``jobDefaults``."""
    if not text:
        return {}
    found = _json(text, NAMESPACE_DEFAULTS_ENV, '{"team-a": {"ttlSecondsAfterFinished": 3600}}')
    if not isinstance(found, dict):
        raise BadSetting(f"{NAMESPACE_DEFAULTS_ENV} must be an object, found {found!r}")
    made = {}
    for namespace, fields in found.items():
        where = f"{NAMESPACE_DEFAULTS_ENV}: {namespace}"
        if isinstance(fields, dict):  # the chart's way to say that it is not set
            fields = {name: value for name, value in fields.items() if value != ""}
        _check_fields(fields, where, _OF_A_NAMESPACE, ("failurePolicy", "memoryCheckpoints"))
        made[namespace] = JobDefaults(
            fields.get("ttlSecondsAfterFinished"),
            fields.get("activeDeadlineSeconds"),
            _checked_limits(fields.get("failurePolicy", {}), f"{where}: failurePolicy"),
            _checked_memory(fields.get("memoryCheckpoints"), f"{where}: memoryCheckpoints"),
        )
    return made


def _json(text: str, name: str, example: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadSetting(f"{name} must be JSON, such as {example}: {error}") from error


def _checked_limits(found: Any, where: str) -> dict[str, Any]:
    _check_fields(found, where, _OTHER_LIMITS, _ACCOUNTS)
    for account in _ACCOUNTS:
        if account in found:
            _check_fields(found[account], f"{where}: {account}", _ACCOUNT_FIELDS)
    return dict(found)


def _memory_checkpoints(text: str) -> dict[str, Any] | None:
    """The memory checkpoints of jobs that say nothing of them, as JSON."""
    found = _json(text, DEFAULT_MEMORY_ENV, '{"perPod": "8Gi"}') if text else None
    return _checked_memory(found, DEFAULT_MEMORY_ENV)


def _checked_memory(found: Any, where: str) -> dict[str, Any] | None:
    """None, also for an empty object: it is not set."""
    if not found and found in (None, {}):
        return None
    _check_fields(found, where, {}, ("perPod", "copies", "spread"))
    if memory_bytes(found.get("perPod")) is None:
        expected = "a number of bytes or a quantity such as 8Gi"
        raise BadSetting(f"{where}: perPod must be {expected}, found {found.get('perPod')!r}")
    copies, spread = found.get("copies", 1), found.get("spread", CopySpread.NODE)
    if copies is True or copies is False or copies not in (0, 1):
        raise BadSetting(f"{where}: copies must be 0 or 1, found {copies!r}")
    if spread not in [str(word) for word in CopySpread]:
        raise BadSetting(f"{where}: spread must be Node or None, found {spread!r}")
    return dict(found)


def _check_fields(
    found: object, where: str, numbers: Mapping[str, int], others: Collection[str] = ()
) -> None:
    if not isinstance(found, dict):
        raise BadSetting(f"{where} must be an object, found {found!r}")
    unknown = found.keys() - numbers.keys() - set(others)
    if unknown:
        known = ", ".join(sorted((*numbers, *others)))
        raise BadSetting(f"{where} has {', '.join(sorted(unknown))}; expected some of {known}")
    for name, least in numbers.items():
        value = found.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_NUMBER:
            expected = f"a whole number from {least} to {_MAX_NUMBER}"
            raise BadSetting(f"{where}: {name} must be {expected}, found {value!r}")


def _address(given: Mapping[str, str], name: str) -> tuple[str, int] | None:
    text = given.get(name, "").strip()
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise BadSetting(f"{name} must be an address and a port, such as 0.0.0.0:8080, found {text!r}")
    return host.strip("[]") or "0.0.0.0", int(port)


def _election(given: Mapping[str, str]) -> Place:
    def value(name: str) -> str:
        return given.get(f"{LEADER_ELECT_ENV}_{name}", "").strip()

    where = value("RESOURCE_NAMESPACE") or given.get("POD_NAMESPACE", "").strip()
    if not where and _OWN_NAMESPACE.is_file():
        where = _OWN_NAMESPACE.read_text().strip()
    if not where:
        raise BadSetting(
            "leader election outside a cluster needs the namespace of its Lease: set "
            f"--leader-elect-resource-namespace or {LEADER_ELECT_ENV}_RESOURCE_NAMESPACE"
        )
    default = Timing()
    try:
        timing = Timing(
            lease_duration=_seconds(value("LEASE_DURATION"), default.lease_duration),
            renew_deadline=_seconds(value("RENEW_DEADLINE"), default.renew_deadline),
            retry_period=_seconds(value("RETRY_PERIOD"), default.retry_period),
        )
    except ValueError as error:
        raise BadSetting(str(error)) from error
    return Place(where, value("RESOURCE_NAME") or LEASE_NAME, timing)


def _seconds(text: str, default: float) -> float:
    if not text:
        return default
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadSetting(f"{text!r} is not a duration: expected 15s, 500ms, 1m or a number of seconds")
    return float(match[1]) * _UNITS[match[2]]
