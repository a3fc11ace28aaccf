"""Whether the rounds are an operator's or the pods' own, and the handler for the latter."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace

from torch.distributed.elastic.rendezvous import RendezvousParameters

from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.agent.local_addr import LocalAddrError, find_own_address
from elasticjob.agent.settings import (
    OPERATOR,
    PEER_JOIN_SECONDS,
    PEER_LAST_CALL_SECONDS,
    PEERS,
    Settings,
    SettingsError,
)
from elasticjob.api.connection import Connection
from elasticjob.api.errors import ApiError
from elasticjob.api.listing import HttpListApi
from elasticjob.contract.limits import Limits
from elasticjob.contract.round_record import RoundRecord
from elasticjob.coordination.source import PeerSource
from elasticjob.peers.round_lease import Identity
from elasticjob.peers.run import MAX_PEERS, RunError, check_pod, check_run

logger = logging.getLogger(__name__)

COMPLETION_INDEX_ENV = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an Indexed Job."""
_INDEX = re.compile(r"-([0-9]{1,8})$")


def choose_rounds(settings: Settings, connection: Connection) -> Settings:
    """The settings with ``rounds``: those of an operator, unless the user has chosen the pods' own or the API
    server has no ElasticJobs. Raises SettingsError."""
    if settings.job_uid and settings.rounds == PEERS:
        raise SettingsError(
            "--rdzv-conf: rounds=peers is for pods without an operator, and an operator has made this one: "
            "remove it from the command, or from PET_RDZV_CONF"
        )
    rounds = settings.rounds or (OPERATOR if settings.job_uid else _found(settings, connection))
    if rounds == OPERATOR and settings.last_call_timeout is not None:
        raise SettingsError(
            "--rdzv-conf: last_call_timeout is for rounds=peers; an ElasticJob has "
            "spec.initialLastCallTimeoutSeconds and spec.lastCallTimeoutSeconds"
        )
    return replace(settings, rounds=rounds)


def _found(settings: Settings, connection: Connection) -> str:
    """What it is where the user has not chosen. Without an answer it is the operator's, as it was before: if
    the API server then has no ElasticJobs, the agent says so and ends, and the next one asks again."""
    try:
        return OPERATOR if HttpListApi(connection, settings.namespace).has_resource() else PEERS
    except ApiError as error:
        logger.warning(
            "cannot find out whether the API server has ElasticJobs (%s): waiting for an operator", error
        )
        return OPERATOR


def make_peer_handler(
    settings: Settings, params: RendezvousParameters, connection: Connection, release: Callable[[], None]
) -> K8sRendezvousHandler:
    """The handler of a run without operator. Raises SettingsError."""
    if settings.other_namespace:
        raise SettingsError(
            f"--rdzv-endpoint is {settings.namespace}/{settings.job}, but this pod is in namespace "
            f"{connection.namespace}, and without an operator (rounds=peers) a run is in the namespace of "
            f"its pods: only there does a pod's Lease go with the pod. Use --rdzv-endpoint={settings.job}, "
            f"or create the pods in namespace {settings.namespace}"
        )
    try:
        run = check_run(settings.job, params.run_id, params.min_nodes, params.max_nodes)
        check_pod(settings.pod)
        local_addr = settings.local_addr or find_own_address(connection.base)
    except (RunError, LocalAddrError) as error:
        raise SettingsError(str(error)) from None
    logger.info(
        "rounds without an operator (rounds=peers): run %s of %s/%s, %d to %d pods, at most %d; pod %s",
        *(run.id, settings.namespace, run.name, run.minimum, run.maximum, MAX_PEERS, settings.pod),
    )
    settings = replace(
        settings,
        job_uid=run.id,
        join_timeout=settings.join_timeout or PEER_JOIN_SECONDS,
        local_addr=local_addr,
    )

    def open_api() -> HttpListApi:
        return HttpListApi(connection, settings.namespace)

    def open_source(changed: Callable[[RoundRecord], None]) -> PeerSource:
        me = Identity(settings.pod, settings.pod_uid)
        return PeerSource(run, me, _slot(settings.pod), _limits(settings), open_api, changed)

    return K8sRendezvousHandler(settings, params.run_id, open_api, release, open_source)


def _slot(pod: str) -> int | None:
    """The index of this pod: of an Indexed Job's, else the number at the end of its name, as a StatefulSet's
    has."""
    index = os.environ.get(COMPLETION_INDEX_ENV, "")
    found = _INDEX.search(f"-{index}") or _INDEX.search(pod)
    return int(found[1]) if found is not None else None


def _limits(settings: Settings) -> Limits:
    """Those of the run, if this agent coordinates its first round: whole seconds, as records have them."""
    chosen = settings.limits(
        Limits(initial_last_call_timeout=settings.last_call_timeout or PEER_LAST_CALL_SECONDS)
    )
    return replace(
        chosen,
        initial_last_call_timeout=math.ceil(chosen.initial_last_call_timeout),
        establish_timeout=math.ceil(chosen.establish_timeout),
        heartbeat_timeout=math.ceil(chosen.heartbeat_timeout),
        stall_timeout=math.ceil(chosen.stall_timeout),
    )
