"""The backend's settings: from ``--rdzv-endpoint``, ``--rdzv-conf``, ``--local-addr`` and the environment.

Every ``--rdzv-conf`` key wins over what the operator publishes in the round record.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from elasticjob.agent.local_addr import LocalAddrError, read_local_addr
from elasticjob.contract import names
from elasticjob.contract.limits import Limits

KEYS = {
    "rounds": "peers: the pods form their rounds themselves, without an operator; operator: the rounds are "
    "those of an ElasticJob; default: peers if the API server has no ElasticJobs",
    "join_timeout": "seconds to wait for a round before giving up; default: no limit, with rounds=peers 600",
    "last_call_timeout": "with rounds=peers: seconds that the first round waits for more pods once enough "
    "have joined; default: 30",
    "establish_timeout": "seconds for all members to reach the leader; default: the job's",
    "heartbeat_timeout": "seconds without a heartbeat until a peer that does not answer is lost; "
    "default: the job's",
    "stall_timeout": "seconds without a heartbeat until a peer that still accepts connections is lost; "
    "default: the job's",
    "warm": "on: interpreters that have imported torch wait beside the workers; default: "
    f"{names.WARM_ENV}, else off",
    "warm_imports": f"modules that they import as well, with ':' between; default: {names.WARM_IMPORTS_ENV}",
    "worker_stop": "seconds from the end of a round until workers that still run are killed; default: 10",
    "kubeconfig": "path of a kubeconfig; default: the pod's service account, else KUBECONFIG",
    "pod": "name of this pod; default: ELASTICJOB_POD_NAME, else the token's claim",
    "pod_uid": "UID of this pod; default: ELASTICJOB_POD_UID, else the token's claim",
}
IGNORED = {"timeout", "is_host", "store_type", "read_timeout", "rank"}
"""Keys that torch adds by itself or that belong to its other backends."""


PEERS, OPERATOR = "peers", "operator"
"""Values of ``rounds``."""
PEER_JOIN_SECONDS, PEER_LAST_CALL_SECONDS = 600.0, 30.0
"""As with torch's own backend: no operator judges a run that does not begin."""


class SettingsError(ValueError):
    """A wrong setting. The text names what was found, what was expected and what to do."""


@dataclass(frozen=True)
class Settings:
    """The user's choices. Times are in seconds; None if the job decides. No ``namespace``: the pod's."""

    namespace: str
    job: str
    rounds: str = ""
    """PEERS, OPERATOR or, if the user has not chosen, ""."""
    last_call_timeout: float | None = None
    join_timeout: float | None = None
    establish_timeout: float | None = None
    heartbeat_timeout: float | None = None
    stall_timeout: float | None = None
    worker_stop: float = 10.0
    warm: bool = False
    warm_imports: tuple[str, ...] = ()
    local_addr: str = ""
    kubeconfig: str = ""
    pod: str = ""
    pod_uid: str = ""
    job_uid: str = ""
    memory: int = 0
    """Bytes that it may hold of memory checkpoints; 0: there are none."""
    copies: int = 1
    """In how many other pods each piece of them is held: 0 or 1."""
    node: str = ""
    zone: str = ""
    other_namespace: bool = False
    """Whether this pod is in another namespace than the job: the operator grants it nothing, ever."""

    @property
    def peers(self) -> bool:
        """Whether the pods form their rounds themselves."""
        return self.rounds == PEERS

    def limits(self, of_job: Limits) -> Limits:
        """The job's limits, but for those that the user chose for this agent."""
        return replace(
            of_job,
            establish_timeout=self.establish_timeout or of_job.establish_timeout,
            heartbeat_timeout=self.heartbeat_timeout or of_job.heartbeat_timeout,
            stall_timeout=self.stall_timeout or of_job.stall_timeout,
        )


def read_settings(endpoint: str, config: Mapping[str, object], local_addr: str | None) -> Settings:
    """Read and check the settings. Raises SettingsError."""
    namespace, _, job = endpoint.rpartition("/")
    if not job or "/" in namespace or any(c.isspace() or c == ":" for c in endpoint):
        raise SettingsError(
            f"--rdzv-endpoint is {endpoint!r}, expected [NAMESPACE/]NAME of an ElasticJob, e.g. default/mnist"
        )
    if not names.is_job_name(job):
        raise SettingsError(
            f"--rdzv-endpoint is {endpoint!r}, but {job!r} is not a valid ElasticJob name: at most "
            f"{names.MAX_JOB_NAME_LENGTH} lower-case letters, digits and '-', with no '-' at either end"
        )
    if namespace and not names.is_namespace(namespace):
        raise SettingsError(
            f"--rdzv-endpoint is {endpoint!r}, but {namespace!r} is not a valid namespace name"
        )
    unknown = sorted(set(config) - set(KEYS) - IGNORED)
    if unknown:
        known = "; ".join(f"{key}: {text}" for key, text in KEYS.items())
        raise SettingsError(f"--rdzv-conf: unknown key {', '.join(unknown)}. Known keys: {known}")
    if local_addr:
        try:
            local_addr = read_local_addr(local_addr)
        except LocalAddrError as error:
            raise SettingsError(str(error)) from None
    warm = _on(config, os.environ)
    return Settings(
        namespace=namespace,
        job=job,
        rounds=_rounds(config),
        last_call_timeout=_seconds(config, "last_call_timeout"),
        join_timeout=_seconds(config, "join_timeout"),
        establish_timeout=_seconds(config, "establish_timeout"),
        heartbeat_timeout=_seconds(config, "heartbeat_timeout"),
        stall_timeout=_seconds(config, "stall_timeout"),
        worker_stop=_seconds(config, "worker_stop") or 10.0,
        warm=warm,
        warm_imports=_modules(config, os.environ, warm),
        local_addr=local_addr or "",
        kubeconfig=str(config.get("kubeconfig", "")),
        pod=str(config.get("pod", "")) or os.environ.get(names.POD_NAME_ENV, ""),
        pod_uid=str(config.get("pod_uid", "")) or os.environ.get(names.POD_UID_ENV, ""),
        job_uid=os.environ.get(names.JOB_UID_ENV, ""),
        memory=_number(os.environ, names.MEMORY_ENV, 0, 2**60, "bytes that memory checkpoints may take"),
        copies=_number(os.environ, names.COPIES_ENV, 1, 1, "pods with a copy of each piece of them"),
        node=os.environ.get(names.NODE_ENV, ""),
        zone=os.environ.get(names.ZONE_ENV, ""),
    )


def _rounds(config: Mapping[str, object]) -> str:
    value = str(config.get("rounds", ""))
    if value not in (PEERS, OPERATOR) and (value or "rounds" in config):
        raise SettingsError(f"--rdzv-conf: rounds is {value!r}, expected {PEERS} or {OPERATOR}")
    return value


def _seconds(config: Mapping[str, object], key: str) -> float | None:
    if key not in config:
        return None
    try:
        value = float(str(config[key]))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise SettingsError(
            f"--rdzv-conf: {key} is {config[key]!r}, expected a number of seconds greater than 0"
        )
    return value


def _number(environ: Mapping[str, str], variable: str, default: int, most: int, what: str) -> int:
    value = environ.get(variable, "") or str(default)
    if not (value.isascii() and value.isdecimal() and int(value) <= most):
        raise SettingsError(f"{variable} is {value!r}, expected a number from 0 to {most}: {what}")
    return int(value)


def _option_or_variable(
    config: Mapping[str, object], key: str, environ: Mapping[str, str], variable: str
) -> tuple[str, str]:
    """The value of the option, or else of the variable, and where it was found, for error messages."""
    if key in config:
        return str(config[key]), f"--rdzv-conf: {key}"
    return environ.get(variable, ""), variable


def _on(config: Mapping[str, object], environ: Mapping[str, str]) -> bool:
    value, where = _option_or_variable(config, "warm", environ, names.WARM_ENV)
    if value not in ("on", "off") and (value or "warm" in config):
        raise SettingsError(f"{where} is {value!r}, expected on or off")
    return value == "on"


def _modules(config: Mapping[str, object], environ: Mapping[str, str], warm: bool) -> tuple[str, ...]:
    value, where = _option_or_variable(config, "warm_imports", environ, names.WARM_IMPORTS_ENV)
    found = tuple(name for name in value.split(":") if name)
    if not all(part.isidentifier() for name in found for part in name.split(".")):
        raise SettingsError(
            f"{where} is {value!r}, expected names of modules with ':' between, e.g. transformers:datasets"
        )
    if found and not warm and "warm_imports" in config:
        raise SettingsError(f"{where} is {value!r}, but warm is off: add warm=on, or leave it out")
    return found if warm else ()
