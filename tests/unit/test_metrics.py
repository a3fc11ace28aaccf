"""What Prometheus gets when it asks: all that is declared, nothing of jobs that are gone, not too much."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, cast

import pytest
from aiohttp import ClientSession, web
from prometheus_client.parser import text_string_to_metric_families

from elasticjob_operator.controller.controller import Controller
from elasticjob_operator.leadership.elector import Elector
from elasticjob_operator.metrics import families as f
from elasticjob_operator.metrics import jobs
from elasticjob_operator.metrics.families import ALL, Kind, Metric, Sample
from elasticjob_operator.metrics.meter import KEPT, Meter
from elasticjob_operator.metrics.requests import verb_and_resource
from elasticjob_operator.observe.client import Api
from elasticjob_operator.observe.errors import Unavailable
from elasticjob_operator.observe.objects import read_node
from elasticjob_operator.observe.spec import JobView
from elasticjob_operator.observe.write_outages import WriteOutages
from elasticjob_operator.plan.state.evidence import CAUSES
from elasticjob_operator.plan.state.model import Job, JobSpec
from elasticjob_operator.plan.state.restart_accounts import Account
from elasticjob_operator.plan.state.status import (
    Condition,
    Failure,
    JobStatus,
    ParticipantStatus,
    Progress,
    RoundStatus,
)
from elasticjob_operator.scrape import Scrape, Seen, samples
from elasticjob_operator.settings import MetricsSettings, Settings
from tests.docs_commands import ROOT
from tests.unit.test_docs import STATUS, explained

WALL = datetime(2026, 1, 1, tzinfo=timezone.utc)
DOCUMENT = ROOT / "docs" / "operate" / "metrics.md"
BEGIN, END = (
    "<!-- Begin of what test_metrics.py compares -->",
    "<!-- End of what test_metrics.py compares -->",
)


def view(name: str, state: str = "Training", namespace: str = "team", **status: Any) -> JobView:
    """A job of 8 replicas and a spare that trains, with as many series as a job can have."""
    finished = state in ("Complete", "Failed")
    conditions = (
        Condition("Training", str(state == "Training"), state),
        Condition("Complete", str(state == "Complete"), "x"),
        Condition("Failed", str(state == "Failed"), "x"),
    )
    made = JobStatus(
        observed_generation=1,
        conditions=conditions,
        min_replicas=4,
        restarts=3,
        current_round=RoundStatus(number=7, phase="Closed" if finished else "Active", members=8),
        participants=(ParticipantStatus("i", "p", "u", "Standby", slot=8),),
        accounts=tuple(Account(a, 5, 3600) for a in ("application", "infrastructure", "preemption")),
        progress=Progress(step=40, goodput_percent=97, lost_seconds=214, last_report_time=WALL),
    )
    job = Job(namespace, name, f"uid-{name}", 1, JobSpec(replicas=8, spares=1))
    return JobView(job, replace(made, **status), 1, managed_here=True, deleting=False)


def values(found: Any) -> dict[tuple[str, ...], float]:
    return {(sample.metric.name, *sample.labels): sample.value for sample in found}


def of_jobs(*views: JobView, per_job: bool = True, max_jobs: int = 100) -> dict[tuple[str, ...], float]:
    return values(jobs.samples(views, 0, WALL, per_job, max_jobs, {"bad": "zone-1"}))


# -- declarations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_name_follows_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"elasticjob_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_seconds") or metric.kind is not Kind.HISTOGRAM
    assert metric.help
    assert not metric.help.endswith(".")
    assert set(metric.labels).isdisjoint({"job", "namespace", "instance", "le", "pod"}), "Prometheus's own"


def test_every_metric_is_declared_once() -> None:
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names))


def table() -> str:
    """The tables of docs/operate/metrics.md."""
    parts = []
    for title, metrics in (
        ("Jobs together", f.OF_JOBS),
        ("What was decided", f.OF_DECISIONS),
        ("The operator's process", f.OF_THE_PROCESS),
        ("Each job", f.OF_EACH_JOB),
    ):
        rows = [f"## {title}", "", "| metric | type | labels | what it is |", "|---|---|---|---|"]
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            rows.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def test_the_document_has_all_of_them() -> None:
    """With REWRITE=1 it is written."""
    text = DOCUMENT.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{DOCUMENT.name} has the lines {BEGIN!r} and {END!r}"
    expected = f"{before}{begin}\n\n{table()}\n\n{end}{after}"
    if os.environ.get("REWRITE"):
        DOCUMENT.write_text(expected)
    assert text == expected, "run REWRITE=1 pytest tests/unit/test_metrics.py"


# -- jobs --------------------------------------------------------------------------------------------------


def test_jobs_by_state_and_their_members() -> None:
    found = of_jobs(
        view("a"),
        view("b", "WaitingForFencing"),
        view("c", "Complete"),
        view("d", "Edited"),
        view("e", conditions=()),
    )
    states = {labels[1]: value for labels, value in found.items() if labels[0] == f.JOBS.name and value}
    assert states == {"Training": 1, "WaitingForFencing": 1, "Complete": 1, "Other": 1, "New": 1}
    assert found[(f.MEMBERS.name,)] == found[(f.JOB_MEMBERS.name, "team", "a")] == 8
    assert found[(f.JOB_MEMBERS.name, "team", "b")] == 0, "no round runs"
    assert found[(f.WANTED_PODS.name,)] == 4 * 9, "a job that has ended asks for none"
    assert found[(f.STANDBYS.name,)] == 5
    assert found[(f.JOB_STATE.name, "team", "b", "WaitingForFencing")] == 1
    assert found[(f.JOB_CHARGES_LEFT.name, "team", "a", "application")] == 5
    assert found[(f.JOB_GOODPUT.name, "team", "a")] == 0.97
    assert found[(f.JOB_STEP_TIME.name, "team", "a")] == WALL.timestamp()


def test_a_job_that_has_ended_keeps_few_series() -> None:
    found = of_jobs(view("a", "Failed"))
    assert {labels[0] for labels in found if "team" in labels} == {
        metric.name for metric in (f.JOB_STATE, f.JOB_RESTARTS, f.JOB_STEP, f.JOB_GOODPUT, f.JOB_LOST)
    }


def test_series_of_jobs_can_be_switched_off_and_have_a_bound() -> None:
    views = [view("done", "Complete"), view("b"), view("a")]
    none = of_jobs(*views, per_job=False)
    assert not any("team" in labels for labels in none)
    assert none[(f.JOBS.name, "Training")] == 2
    assert none[(f.WITHOUT_SERIES.name,)] == 0
    found = of_jobs(*views, max_jobs=2)
    assert {labels[2] for labels in found if "team" in labels} == {"a", "b"}, "those that have not ended"
    assert found[(f.WITHOUT_SERIES.name,)] == 1


def test_the_nodes_on_which_several_jobs_have_just_failed() -> None:
    def failed(name: str, node: str, ago: float) -> JobView:
        return view(name, last_failure=Failure("p", WALL - timedelta(seconds=ago), node_name=node))

    many = [failed(f"m{i}", f"other-{i:02}", 5) for i in range(30)]
    found = of_jobs(failed("a", "bad", 10), failed("b", "bad", 599), failed("c", "bad", 601), *many)
    nodes = {labels[1:]: value for labels, value in found.items() if labels[0] == f.NODE_FAILED_JOBS.name}
    assert nodes["bad", "zone-1"] == 2
    assert nodes["other-00", ""] == 1, "a node that has no zone, or cannot be read"
    assert len(nodes) == jobs.MAX_NODES
    assert not any(labels[0] == f.NODE_FAILED_JOBS.name for labels in of_jobs(failed("a", "", 1)))


# -- the text ----------------------------------------------------------------------------------------------


def seen(*views: JobView) -> Seen:
    return Seen(WALL, True, views, watch_ages=(("pods", 3.0),), watch_gaps=(("pods", 1),))


def busy_meter() -> Meter:
    """One that has counted something of everything."""
    meter = Meter()
    meter.count(Sample(m, tuple("x" for _ in m.labels), 1) for m in KEPT)
    return meter


def test_everything_that_is_declared_is_there_and_nothing_else() -> None:
    failed = view("b", last_failure=Failure("p", WALL, node_name="bad"))
    text = busy_meter().text(lambda: samples(seen(view("a"), failed), MetricsSettings())).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, family.documentation)
    ours = {name: what for name, what in found.items() if name.startswith("elasticjob_")}
    assert ours == {metric.name: (metric.kind.value, metric.help) for metric in ALL}
    assert {name.partition("_")[0] for name in found} == {"elasticjob", "process", "python"}


def test_what_can_happen_is_there_before_it_does() -> None:
    """A rate sees only an increase, and a series that begins with 1 has none."""
    text = Meter().text(lambda: ()).decode()
    for cause in CAUSES:
        assert f'elasticjob_lost_seconds_total{{cause="{cause}"}} 0.0' in text
    assert 'elasticjob_charges_total{account="infrastructure",cause="PodLost"} 0.0' in text
    assert 'elasticjob_detection_seconds_count{account="preemption"} 0.0' in text
    ends = {*re.findall(r'elasticjob_finished_jobs_total\{outcome="Failed",reason="(\w+)"\} 0.0', text)}
    assert ends == set(explained(STATUS, "Failed's reason"))
    assert 'elasticjob_finished_jobs_total{outcome="Complete",reason="Succeeded"} 0.0' in text


def test_a_thousand_jobs_cost_less_than_2_mb() -> None:
    """With long names; the longest that there may be take a quarter more."""

    def long(number: int) -> JobView:
        return view(f"{number:04}".rjust(40, "j"), namespace=f"{number % 50:02}".rjust(30, "n"))

    views = [long(number) for number in range(1_500)]
    settings = MetricsSettings()
    size = len(busy_meter().text(lambda: samples(seen(*views), settings)))
    assert size < 2_000_000, f"{size} bytes"
    assert settings.max_jobs == 1_000


def test_a_job_that_is_deleted_takes_its_series_along() -> None:
    meter = Meter()
    for there in (True, False):
        views = [view("stays"), *([view("goes")] if there else [])]
        text = meter.text(partial(samples, seen(*views), MetricsSettings())).decode()
        assert ('job_name="goes"' in text) is there
        assert 'job_name="stays"' in text


def test_a_name_cannot_break_out_of_its_label() -> None:
    text = Meter().text(lambda: samples(seen(view('a"} 1\nx')), MetricsSettings())).decode()
    assert 'job_name="a\\"} 1\\nx"' in text


# -- who asks ----------------------------------------------------------------------------------------------


class Nobody:
    def __init__(self) -> None:
        self.write_outages = WriteOutages()


class Follower:
    def may_write(self) -> bool:
        return False


class Scene:
    """A controller that leads and knows one job."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.meter = Meter()
        settings = Settings(namespaces=("here", "there"))
        self.controller = Controller(cast(Api, Nobody()), settings, clock=lambda: self.now, meter=self.meter)
        self.scrape = Scrape(self.meter, settings.metrics)
        self.scrape.controller = self.controller
        meta = {"name": "job", "namespace": "here", "uid": "u", "resourceVersion": "1", "generation": 1}
        self.controller.source.watched({"metadata": meta, "spec": {"replicas": 2}, "status": {}})

    async def ask(self) -> str:
        return (await self.scrape.render()).plain.decode()


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_only_the_leading_operator_tells_of_jobs(scene: Scene) -> None:
    assert "elasticjob_jobs" not in await scene.ask(), "it has not begun to make passes"
    scene.controller.queue.open()
    text = await scene.ask()
    assert 'elasticjob_job_state{job_name="job",job_namespace="here",state="New"} 1.0' in text
    assert "elasticjob_leading 1.0" in text
    scene.scrape.elector = cast(Elector, Follower())
    text = await scene.ask()
    assert "elasticjob_leading 0.0" in text
    assert "elasticjob_jobs" not in text
    assert "elasticjob_watch_age_seconds" in text


async def test_the_oldest_watch_of_a_kind_counts(scene: Scene) -> None:
    for informer in scene.controller.cache.informers():
        informer.last_event_at = scene.now - (90 if "there" in informer.path else 5)
    ages = dict(scene.scrape.look().watch_ages)
    assert ages == {"pods": 90, "leases": 90, "serviceaccounts": 90, "nodes": 5, "elasticjobs": 0}


async def test_nodes_tell_their_zone(scene: Scene) -> None:
    for name, labels in (("a", {"topology.kubernetes.io/zone": "zone-1"}), ("b", {})):
        scene.controller.cache.nodes.put(read_node({"metadata": {"name": name, "labels": labels}}))
    assert scene.scrape.look().zones == {"a": "zone-1"}


async def test_before_the_controller_is_there(scene: Scene) -> None:
    scene.scrape.controller = None
    text = await scene.ask()
    assert "elasticjob_build_info" in text
    assert "elasticjob_leading 0.0" in text


async def test_it_is_served_and_packed_for_who_can_unpack(scene: Scene) -> None:
    server = await scene.scrape.serve("127.0.0.1", 0)
    host, port = server.addresses[0]
    url = f"http://{host}:{port}/metrics"
    async with ClientSession(auto_decompress=False) as session:
        async with session.get(url, headers={"Accept-Encoding": "gzip"}) as answer:
            packed = await answer.read()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        async with session.get(url, headers={"Accept-Encoding": "identity"}) as answer:
            plain = await answer.read()
    await server.cleanup()
    assert b"elasticjob_build_info" in gzip.decompress(packed)
    assert b"elasticjob_build_info" in plain


async def test_requests_and_loop_are_measured(scene: Scene) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=429)

    application = web.Application()
    application.add_routes([web.patch("/api/v1/namespaces/x/pods/{name}", refuse)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    loop = asyncio.create_task(scene.scrape.watch_loop())
    async with ClientSession(trace_configs=[scene.meter.trace()]) as session:
        async with session.patch(f"http://{host}:{port}/api/v1/namespaces/x/pods/a"):
            pass
        await runner.cleanup()
        with pytest.raises(OSError):
            await session.get(f"http://{host}:{port}/api/v1/pods?watch=1")
    async with asyncio.timeout(60):
        while "elasticjob_event_loop_lag_seconds_count 0.0" in (text := await scene.ask()):
            await asyncio.sleep(0.1)
    loop.cancel()
    assert 'elasticjob_api_requests_total{code="429",resource="pods",verb="patch"} 1.0' in text
    assert 'elasticjob_api_requests_total{code="none",resource="pods",verb="watch"} 1.0' in text
    assert 'elasticjob_api_request_seconds_count{verb="patch"} 1.0' in text
    assert re.search(r"^elasticjob_event_loop_lag_seconds_count [1-9]", text, re.MULTILINE)


async def test_passes_are_counted(scene: Scene) -> None:
    controller = scene.controller
    controller.queue.open()
    results: list[Exception | None] = [Unavailable("GET x", 503, "", ""), None]

    async def reconcile(*_: object) -> None:
        scene.now += 0.5
        if error := results.pop(0):
            raise error

    controller.reconciler.reconcile = reconcile  # type: ignore[method-assign,assignment]
    (entry,) = controller.registry
    for _ in range(2):
        await controller._reconcile(entry, False)
    text = await scene.ask()
    assert 'elasticjob_failed_passes_total{error="Unavailable"} 1.0' in text
    assert "elasticjob_pass_seconds_sum 0.5" in text
    await controller.aclose()


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/pods", {"limit": "500"}, ("list", "pods")),
        ("GET", "/api/v1/pods", {"watch": "1"}, ("watch", "pods")),
        ("GET", "/api/v1/namespaces/a/pods/b", {}, ("get", "pods")),
        ("POST", "/api/v1/namespaces/a/events", {}, ("create", "events")),
        ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", {}, ("delete", "leases")),
        (
            "PATCH",
            "/apis/elasticjob.dev/v1alpha1/namespaces/a/elasticjobs/b/status",
            {},
            ("patch", "elasticjobs/status"),
        ),
        ("GET", "/apis/elasticjob.dev/v1alpha1/elasticjobs", {}, ("list", "elasticjobs")),
        ("GET", "/api/v1/nodes", {}, ("list", "nodes")),
        ("GET", "/", {}, ("list", "other")),
        ("BREW", "/api/v1/namespaces/a/secrets/b", {}, ("other", "other")),
    ],
)
def test_the_words_of_a_request(
    method: str, path: str, query: dict[str, str], expected: tuple[str, str]
) -> None:
    assert verb_and_resource(method, path, query) == expected
