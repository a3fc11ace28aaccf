"""Creates the handler: reads the settings, connects to the API server, finds this pod's identity, sets up the
log.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from torch.distributed.elastic.rendezvous import RendezvousParameters

from elasticjob.agent.handler import K8sRendezvousHandler
from elasticjob.agent.local_addr import LocalAddrError, check_local_addr
from elasticjob.agent.peer_mode import choose_rounds, make_peer_handler
from elasticjob.agent.pod_lock import AgentLock
from elasticjob.agent.resolver import shorten_lookups
from elasticjob.agent.settings import Settings, SettingsError, read_settings
from elasticjob.api.connection import ConfigurationError, Connection, connect
from elasticjob.api.leases import HttpLeaseApi
from elasticjob.contract import names
from elasticjob.workers.open_files import raise_limit

logger = logging.getLogger(__name__)


def _log_to_stderr() -> None:
    """torchrun sets up no logging but torch's own: without this our log would go nowhere.

    ``LOGLEVEL`` is honoured as in torch, with INFO as default. Logging that is set up already stays.
    """
    own = logging.getLogger("elasticjob")
    if own.handlers or (logging.getLogger().handlers and not _by_a_stray_call(logging.getLogger())):
        return
    stream = logging.StreamHandler()
    stream.setFormatter(logging.Formatter("%(asctime)s elasticjob %(levelname).1s %(message)s"))
    own.addHandler(stream)
    level = os.environ.get("LOGLEVEL", "INFO").upper()
    own.setLevel(level if level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL") else "INFO")
    own.propagate = False


def _by_a_stray_call(root: logging.Logger) -> bool:
    """Whether these handlers come from a call of ``logging.info(...)`` before logging was set up: they hide
    all below WARNING. torch 2.4's torchrun makes such a call before it asks for the handler."""
    if len(root.handlers) != 1 or root.level != logging.WARNING:
        return False
    (one,) = root.handlers
    form = one.formatter
    return type(one) is logging.StreamHandler and form is not None and form._fmt == logging.BASIC_FORMAT


def make_handler(params: RendezvousParameters) -> K8sRendezvousHandler:
    """Read the settings, find the API server and this pod's identity, and claim the pod.

    Raises ValueError with advice, and SecondAgent if another process of the pod takes part.
    """
    _log_to_stderr()
    shorten_lookups()
    config = {key: value for key, value in params.config.items() if value is not None}
    settings = read_settings(params.endpoint, config, params.local_addr)
    if settings.local_addr:
        try:
            check_local_addr(settings.local_addr)
        except LocalAddrError as error:
            raise SettingsError(str(error)) from None
    try:
        connection = connect(settings.kubeconfig)
    except ConfigurationError as error:
        raise SettingsError(str(error)) from None
    settings = choose_rounds(_identify(settings, connection), connection)
    lock = AgentLock(settings.pod, settings.pod_uid, f"{settings.namespace}/{settings.job}")
    raise_limit()
    if settings.peers:
        try:
            return make_peer_handler(settings, params, connection, lock.release)
        except BaseException:
            lock.release()
            raise
    logger.info("ElasticJob %s/%s, pod %s", settings.namespace, settings.job, settings.pod)
    return K8sRendezvousHandler(
        settings, params.run_id, lambda: HttpLeaseApi(connection, settings.namespace), lock.release
    )


def _identify(settings: Settings, connection: Connection) -> Settings:
    settings = replace(
        settings,
        namespace=settings.namespace or connection.namespace,
        pod=settings.pod or connection.pod[0],
        pod_uid=settings.pod_uid or connection.pod[1],
        other_namespace=bool(
            settings.namespace and connection.pod[0] and settings.namespace != connection.namespace
        ),
    )
    if not settings.namespace:
        raise SettingsError("the namespace is unknown: use --rdzv-endpoint=NAMESPACE/NAME")
    if not settings.pod or not settings.pod_uid:
        raise SettingsError(
            f"this pod's name and UID are unknown: set {names.POD_NAME_ENV} and {names.POD_UID_ENV} in the "
            "container's env by valueFrom.fieldRef metadata.name and metadata.uid"
        )
    return settings
