"""The operator as a kopf application: ``kopf run -m elasticjob_operator.app -A``, or ``__main__``.
(``kopf run`` asks for the user's name unless ``POD_ID`` or ``--id`` is there.)

kopf is the shell: process, log-in, the watch of ElasticJobs. Its handlers are ``on.event`` only, so
that it writes nothing into the user's objects and puts no finalizer on them; the work is in ``controller``.
With leader election (``leadership``) several processes may run; one of them acts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import kopf
from aiohttp import web

from elasticjob.api.tls import relax
from elasticjob.contract.names import GROUP, PLURAL, VERSION
from elasticjob_operator.act.paths import jobs_path
from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.gc_tuning import GcTuning
from elasticjob_operator.health import Health
from elasticjob_operator.leadership.elector import Elector, identity
from elasticjob_operator.metrics.meter import Meter
from elasticjob_operator.observe.client import Client
from elasticjob_operator.observe.credentials import Credentials, NoCredentials, load
from elasticjob_operator.observe.errors import ApiError, Forbidden, NotFound
from elasticjob_operator.own_thread import in_own_thread
from elasticjob_operator.scrape import Scrape
from elasticjob_operator.settings import Settings, from_environment

_RETRY_SECONDS = 2.0
_CHUNK = 4
"""How many jobs kopf lists at a time: it holds them as Python objects, and one may take 30 MiB as such. Our
own lists hold bytes."""
_IDLE_SECONDS = 0.05
"""How long kopf holds an object that it has handed over, waiting for another version of it."""
_READ_BY_KOPF = {"apiVersion", "kind", "metadata"}
_log_ins = itertools.count()

log = logging.getLogger("elasticjob.operator")


class _Running:
    """What ``startup`` has made, for the other handlers of this process."""

    settings: Settings | None = None
    client: Client | None = None
    controller: Controller | None = None
    elector: Elector | None = None
    election: asyncio.Task[None] | None = None
    own_client: Client | None = None
    """The elector's."""
    probes: web.BaseRunner | None = None
    metrics: web.BaseRunner | None = None
    """If they have an address of their own."""
    gc_tuning: GcTuning | None = None


running = _Running()


class _NothingToCompare(kopf.DiffBaseStorage):
    """kopf would copy the whole of each job that it hears of, and keep the rest of it to show
    handlers of changes what is new. There are no such handlers, and a status may have a megabyte."""

    def build(
        self, *, body: kopf.Body, extra_fields: Iterable[kopf.FieldSpec] | None = None
    ) -> kopf.BodyEssence:
        """What is compared: nothing."""
        del body, extra_fields
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """What was stored: nothing."""
        del body
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing."""


class _Connection(kopf.ConnectionInfo):
    """kopf's own requests accept the certificates that ours accept."""

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        relax(context, None if self.ca_path is None else str(self.ca_path))
        return context


@kopf.on.login()
async def login(**_: Any) -> kopf.ConnectionInfo:
    """kopf logs in with what our own client uses; after a 401 it asks again.

    What was refused once it does not try a second time: it ends the process if offered nothing else. But
    a token may be replaced on disk some time after the API server has ceased to accept it, and a server that
    cannot identify us now may soon be able to. So each log-in comes after a pause, and is another by its
    priority, which among one means nothing.
    """
    number = next(_log_ins)
    if number:
        log.warning("the API server rejects these credentials; reading them again")
        await asyncio.sleep(_RETRY_SECONDS)
    try:
        found = await in_own_thread(load, "credentials")
    except NoCredentials as error:
        raise kopf.TemporaryError(str(error), delay=_RETRY_SECONDS) from error
    scheme, _space, token = (found.authorization or "").partition(" ")
    return _Connection(
        server=found.server,
        ca_path=found.ca_path,
        insecure=not found.verify,
        scheme=scheme or None,
        token=token or None,
        certificate_path=found.certificate_path,
        private_key_path=found.key_path,
        proxy_url=found.proxy,
        priority=number,
    )


@kopf.on.startup()
async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Configure kopf, wait for the resource to be there, and start the controller."""
    configure(settings)
    running.gc_tuning = GcTuning(asyncio.get_running_loop())
    running.gc_tuning.start()
    chosen = running.settings or from_environment()
    health = Health()
    meter = Meter()
    scrape = Scrape(meter, chosen.metrics)
    own = chosen.metrics.address
    if chosen.probes is not None:
        with_probes = chosen.metrics.served and own is None
        running.probes = await health.serve(*chosen.probes, scrape.routes() if with_probes else None)
    if own is not None:
        running.metrics = await scrape.serve(*own)
    if chosen.election is None:
        running.client = Client(Credentials(), traces=[meter.trace()])
    else:
        timing = chosen.election.timing
        running.own_client = Client(Credentials(), timeout=timing.renew_deadline / 2, traces=[meter.trace()])
        running.elector = Elector(running.own_client, chosen.election, identity())
        running.client = Client(
            Credentials(),
            may_write=running.elector.may_write,
            unsent_seconds=timing.lease_duration - timing.renew_deadline,
            write_outages=running.own_client.write_outages,
            traces=[meter.trace()],
        )
    await _resource(running.client, chosen)
    controller = running.controller = Controller(running.client, chosen, meter=meter)
    controller.start(leading=running.elector is None)
    if running.elector is not None:
        running.election = asyncio.create_task(_stand(running.elector, controller), name="election")
    health.controller, health.elector, health.election = controller, running.elector, running.election
    controller.keep_running(scrape.watch_loop(), "event loop's lag")
    scrape.controller, scrape.elector, scrape.client = controller, running.elector, running.client
    log.info("serving %s", ", ".join(chosen.namespaces) or "all namespaces")


async def _stand(elector: Elector, controller: Controller) -> None:
    """Stand for election once everything has been listed: an operator that cannot list it must not lead."""
    await elector.run(controller.lead, controller.follow, ready=controller.cache.synced)


class EndlessBackoff:
    """Pauses between tries that do not end: kopf would give up, and the process with it, after the last."""

    def __init__(self, pauses: Sequence[float]) -> None:
        self._pauses = pauses

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(self._pauses, itertools.repeat(self._pauses[-1]))


def configure(settings: kopf.OperatorSettings) -> None:
    """The settings of kopf that we rely on. ``server_timeout`` and ``inactivity_timeout`` bound a watch that
    has died without a word (nolar/kopf#1276)."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.chunk_size = _CHUNK
    settings.queueing.idle_timeout = _IDLE_SECONDS
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.watching.reconnect_backoff = 0.2
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = EndlessBackoff((0.2, 0.5, 1.0, 2.0, 5.0))
    settings.process.ultimate_exiting_timeout = 10
    settings.persistence.diffbase_storage = _NothingToCompare()


@kopf.on.event(GROUP, VERSION, PLURAL)
async def job_event(event: Any, **_: Any) -> None:
    """Hand the object over; nothing is decided here.

    kopf holds it a while longer, and when its worker ends by a time limit, in a reference cycle, which the
    garbage collector may find hours later (``gc_tuning``). It keeps the metadata, which is all that it reads.
    """
    raw = event["object"]
    if running.controller is not None:
        source = running.controller.source
        (source.deleted if event["type"] == "DELETED" else source.watched)(raw)
    for part in raw.keys() - _READ_BY_KOPF:
        del raw[part]


@kopf.on.cleanup()
async def cleanup(**_: Any) -> None:
    """End our tasks before kopf closes the loop; then, when nothing writes any more, let another lead."""
    if running.election is not None:
        running.election.cancel()
        await asyncio.gather(running.election, return_exceptions=True)
    if running.controller is not None:
        await running.controller.aclose()
    if running.elector is not None:
        await running.elector.release()
    for client in (running.client, running.own_client):
        if client is not None:
            await client.aclose()
    for server in (running.probes, running.metrics):
        if server is not None:
            await server.cleanup()
    if running.gc_tuning is not None:
        running.gc_tuning.stop()
    running.controller = running.elector = running.election = running.gc_tuning = None
    running.client = running.own_client = running.probes = running.metrics = None


async def _resource(client: Client, settings: Settings) -> None:
    """Wait until ElasticJobs are served: kopf looks for the resource only once."""
    path = jobs_path(settings.namespaces[0] if settings.namespaces else "")
    said = ""
    while True:
        try:
            await client.get(path, {"limit": "1"})
            return
        except NotFound:
            problem = f"{PLURAL}.{GROUP} is not installed; apply the resource definition in crds/"
        except Forbidden as error:
            problem = f"not allowed to list {PLURAL}.{GROUP} (RBAC): {error.message}"
        except ApiError as error:
            problem = f"cannot reach the API server yet: {error}"
        if problem != said:
            log.warning("%s", problem)
            said = problem
        await asyncio.sleep(_RETRY_SECONDS)
