"""A job that is followed until it ends, through watches that break off."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import Result

from elasticjob_client import AsyncJobs, ElasticJob, Forbidden, Jobs, NoServer, NotFound
from elasticjob_client.cli.run_follow import follow
from elasticjob_client.patience import Patience
from elasticjob_client.watching import Watch
from tests.terminal import INTERRUPT, terminal
from tests.unit.client.clients import BOTH
from tests.unit.client.conftest import body, container
from tests.unit.client.made import ago, conditions
from tests.unit.client.server import JOBS, PODS, Server, refusal


def changed(version: int, terminal: str = "", **status: Any) -> dict[str, Any]:
    found = body()
    found["metadata"]["resourceVersion"] = str(version)
    found["status"].update({"terminalState": terminal} if terminal else {}, **status)
    return found


def told(*events: tuple[str, dict[str, Any]]) -> str:
    return "".join(json.dumps({"type": kind, "object": found}) + "\n" for kind, found in events)


def over(version: int) -> dict[str, Any]:
    ended = [
        {"type": "Complete", "status": "True", "reason": "Succeeded", "message": "all members succeeded"}
    ]
    return changed(version, "Complete", conditions=[*conditions("Complete", "over"), *ended])


BACK = "the API server answers again"
GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


Watched = Callable[[list[str]], list[ElasticJob]]


class Clock:
    """Instead of the module ``time``: who sleeps has slept at once."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of watches, for both clients."""
    found, real = Clock(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        found.sleep(seconds)
        await real(0)

    for module in ("patience", "watching", "_sync.jobs"):
        monkeypatch.setattr(f"elasticjob_client.{module}.time", found)
    monkeypatch.setattr("elasticjob_client._async.jobs.asyncio.sleep", sleep)
    return found


@pytest.fixture(params=BOTH)
def watched(request: pytest.FixtureRequest) -> Watched:
    """All states of the job; with the notices."""
    return lambda said: request.param(lambda jobs: jobs.watch("mnist"), said, [])


def versions(server: Server) -> list[str]:
    """From where the watches began."""
    asked = [parse_qs(urlsplit(path).query) for _, path, _ in server.asked if "watch=true" in path]
    assert all(one["timeoutSeconds"] == ["240"] for one in asked)
    return [one["resourceVersion"][0] for one in asked]


@pytest.mark.parametrize("gone", [told(("ERROR", GONE)), (410, GONE)], ids=["event", "answer"])
def test_a_job_that_has_not_changed_is_watched_from_the_version_of_a_list(
    server: Server, clock: Clock, watched: Watched, gone: Any
) -> None:
    """A server that has just begun knows no older version, so that of the job is always too old."""
    server.put(changed(1))
    server.watches = [gone, told(("MODIFIED", over(2)))]
    said: list[str] = []
    assert [job.metadata.resource_version for job in watched(said)] == ["1", "2"]
    assert versions(server) == ["1", "1000"]
    assert (clock.slept, said) == ([0], [])


def test_a_watch_that_is_always_too_old_is_no_busy_loop(
    server: Server, clock: Clock, watched: Watched
) -> None:
    server.put(changed(1))
    server.watches = [told(("ERROR", GONE))] * 8 + [told(("MODIFIED", over(2)))]
    said: list[str] = []
    watched(said)
    assert (clock.slept, said) == ([0, 1, 2, 3, 4, 5, 5, 5], [])


def test_a_watch_goes_on_where_the_one_before_broke_off(
    server: Server, clock: Clock, watched: Watched
) -> None:
    server.put(changed(2))
    server.answers[f"{JOBS}/mnist"] = changed(1)
    server.watches = [
        told(("MODIFIED", changed(2))),
        refusal(503, "ServiceUnavailable", "later"),
        told(("ERROR", GONE)),
        told(("MODIFIED", over(4))),
    ]
    said: list[str] = []
    assert [job.metadata.resource_version for job in watched(said)] == ["1", "2", "4"]
    assert versions(server) == ["1", "1000", "1000", "1000"]
    assert clock.slept == [0, 1, 2]
    assert said == ["the API server answers 503: later; trying again for 5 minutes", BACK]


def test_a_server_that_answers_all_but_watches_is_away(
    server: Server, clock: Clock, watched: Watched
) -> None:
    server.put(changed(1))
    server.watches = [refusal(503, "ServiceUnavailable", "later")] * 200
    said: list[str] = []
    with pytest.raises(NoServer, match="cannot watch ElasticJob research/mnist: the API server answers 503"):
        watched(said)
    assert 300 <= clock.now < 310
    assert said == ["the API server answers 503: later; trying again for 5 minutes"]


def test_so_is_one_whose_watches_break_off_at_once(server: Server, clock: Clock, watched: Watched) -> None:
    server.put(changed(1))
    server.watches = [told(("ERROR", {**GONE, "code": 500, "message": "etcd"}))] * 200
    said: list[str] = []
    with pytest.raises(NoServer, match="answers 500: etcd"):
        watched(said)
    assert 300 <= clock.now < 310
    assert said == ["the API server answers 500: etcd; trying again for 5 minutes", BACK], "and no more"


@pytest.mark.parametrize(("seconds", "ended"), [(4.0, True), (6.0, False)])
def test_a_watch_that_stays_open_ends_the_time_away(clock: Clock, seconds: float, ended: bool) -> None:
    watch, away = Watch(ElasticJob.from_dict(changed(1)), Patience(print)), NoServer("", "away")
    with suppress(NoServer):
        while clock.now < 400:
            watch.opened()
            clock.now += seconds
            clock.now += watch.ended(away)
    assert (clock.now < 400) is ended


def test_a_job_that_is_deleted_ends_the_watch(server: Server) -> None:
    server.put(changed(1))
    server.watches = [told(("DELETED", changed(2)))]
    with Jobs() as jobs, pytest.raises(NotFound, match="has been deleted"):
        list(jobs.watch("mnist"))


def test_a_watch_without_the_right_says_so(server: Server) -> None:
    server.put(changed(1))
    server.watches = [refusal(403, "Forbidden", "jane cannot watch", "mnist")]
    with Jobs() as jobs, pytest.raises(Forbidden, match="cannot watch ElasticJob research/mnist"):
        list(jobs.watch("mnist"))


async def test_the_asynchronous_watch(server: Server) -> None:
    server.put(changed(1))
    server.watches = [told(("MODIFIED", changed(2)), ("MODIFIED", over(3)))]
    async with AsyncJobs() as jobs:
        assert (await jobs.wait("mnist", timeout_seconds=60)).metadata.resource_version == "3"


def test_an_interrupted_run_leaves_the_job_alone_or_deletes_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> Iterator[ElasticJob]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Jobs, "watch", interrupted)
    with Jobs() as jobs:
        assert follow(jobs, "mnist") == 130
        assert "mnist goes on: `elasticjob logs mnist -f`" in capsys.readouterr().err
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("click.confirm", lambda *_, **__: True)
        assert follow(jobs, "mnist") == 130
    assert [path for method, path, _ in server.asked if method == "DELETE"] == [f"{JOBS}/mnist"]


def created(server: Server, folder: Path) -> list[str]:
    """What `run` needs of the server, and its command line."""
    script = folder / "train.py"
    script.write_text("print()")
    maps = "/api/v1/namespaces/research/configmaps"
    server.answers[f"POST {maps}"] = server.answers[f"PATCH {maps}/mnist-code"] = {
        "metadata": {"name": "mnist-code"}
    }
    server.answers[f"POST {JOBS}"] = changed(1)
    return ["run", str(script), "--image", "i", "--name", "mnist"]


@pytest.mark.parametrize("phase", ["before the first round", "while the log is followed"])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("y\r", "mnist: deleted"),
        ("\r", "mnist goes on: `elasticjob logs mnist -f`"),
        (INTERRUPT, "mnist goes on: `elasticjob logs mnist -f`"),
    ],
)
def test_ctrl_c_asks_whether_to_delete_the_job(
    server: Server, tmp_path: Path, phase: str, answer: str, said: str
) -> None:
    words = created(server, tmp_path)
    server.held = ("watch=true", "follow=true")
    if phase == "before the first round":
        server.put(changed(1, conditions=conditions("WaitingForPods", "1 of 2 pods have joined")))
        server.watches = [told()]
        shows = "mnist: WaitingForPods: 1 of 2 pods have joined"
    else:
        server.put(changed(1))
        server.answers[f"{PODS}/mnist-0-0/log"] = "step 1\n"
        started = {"running": {"startedAt": ago(900)}}
        server.answers[PODS]["items"][0]["status"]["containerStatuses"] = [container(started)]
        shows = "step 1"
    with terminal([sys.executable, "-m", "elasticjob_client.cli.main", *words]) as shown:
        shown.wait(lambda text: shows in text)
        shown.press(INTERRUPT)
        shown.wait(lambda text: "delete mnist? Otherwise it goes on without you [y/N]:" in text)
        if answer == INTERRUPT:
            assert shown.interrupt() == 130, shown.text
        else:
            shown.press(answer)
            assert shown.end() == 130, shown.text
        assert said in shown.text
        assert "Traceback" not in shown.text
    deleted = [path for method, path, _ in server.asked if method == "DELETE"]
    assert deleted == ([f"{JOBS}/mnist"] if answer == "y\r" else [])


def test_run_follows_the_job_to_its_end(server: Server, run: Callable[..., Result], tmp_path: Path) -> None:
    words = created(server, tmp_path)
    server.put(over(2))
    server.answers[f"{PODS}/mnist-1-0/log"] = "step 1\nstep 2\n"
    ended = server.answers[PODS]["items"][1]
    ended["metadata"]["labels"]["elasticjob.dev/slot"] = "0"
    server.answers[PODS]["items"] = [ended]
    server.answers[f"{JOBS}/mnist"]["status"]["participants"] = []
    result = run(*words)
    assert result.exit_code == 0, result.exception
    assert result.stdout == "step 1\nstep 2\n"
    assert "mnist: Complete: over" in result.stderr
    assert result.stderr.endswith("mnist: Complete: all members succeeded\n")
