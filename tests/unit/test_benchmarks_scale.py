"""What `benchmarks.scale` makes of raw figures, and the light client of a TCPStore."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore

from benchmarks.meter import count_requests
from benchmarks.pictures import plot_scale
from benchmarks.results import TIMEOUT, Sample, Samples
from benchmarks.scale_table import fit, missed_aims, table
from benchmarks.store_client import StoreClient, StoreError
from benchmarks.swarm import SwarmError, common_round
from benchmarks.swarm_messages import Passed


@pytest.fixture
def samples() -> Samples:
    found = Samples({"cpus": 2})
    for n in (2, 32, 256, 1000):
        found.add(Sample("join", "k8s", n, n / 500, figures={"requests": 2.0 * n}))
        for seconds in (n / 1000, n / 800, n / 400):
            found.add(
                Sample("rejoin", "k8s", n, seconds, figures={"requests": float(n), "bytes_sent": 1e3 * n})
            )
    found.add(Sample("join", "c10d", 32, 1.5))
    found.add(Sample("join", "c10d", 256, None, TIMEOUT, "256 of 256 did not return"))
    return found


class TestFit:
    def test_finds_factor_and_exponent_of_a_power_law(self) -> None:
        found = fit([(n, 0.01 * n**1.5) for n in (32, 128, 512)])
        assert found is not None
        assert found.factor == pytest.approx(0.01)
        assert found.exponent == pytest.approx(1.5)
        assert found.at(100) == pytest.approx(10.0)

    def test_leaves_out_where_a_few_requests_take_all_the_time(self) -> None:
        found = fit([(2, 0.5), (8, 0.5), (32, 0.32), (320, 3.2)])
        assert found is not None
        assert found.exponent == pytest.approx(1.0)

    def test_is_none_with_fewer_than_two_sizes(self) -> None:
        assert fit([(2, 1.0), (64, 2.0)]) is None
        assert fit([(64, 1.0), (64, 2.0)]) is None


class TestSamples:
    def test_a_curve_has_the_medians_of_what_ended_well(self, samples: Samples) -> None:
        assert samples.curve("rejoin", "k8s")[-1] == (1000, 1.25)
        assert samples.curve("join", "c10d") == [(32, 1.5)]
        assert samples.curve("rejoin", "k8s", "requests")[0] == (2, 2.0)

    def test_a_backend_ends_where_no_round_ended_well(self, samples: Samples) -> None:
        assert samples.ends("join", "c10d") == [(256, TIMEOUT)]
        assert samples.ends("join", "k8s") == []

    def test_json_keeps_every_sample(self, samples: Samples, tmp_path: Path) -> None:
        samples.write(tmp_path / "scale.json")
        assert Samples.read(tmp_path / "scale.json").all == samples.all
        assert json.loads((tmp_path / "scale.json").read_text())["environment"] == {"cpus": 2}


class TestTable:
    def test_a_row_has_all_backends_and_the_aim(self, samples: Samples) -> None:
        assert "| 256 | 0.51 (0.51 to 0.51) | timeout (1 of 1) |  |" in table(samples)
        assert "| 1000 | 1.25 (1.00 to 2.50) |  | 2.00 |" in table(samples)

    def test_the_last_row_says_how_the_time_grows(self, samples: Samples) -> None:
        assert "| growth | N^1.00 |  |  |" in table(samples)

    def test_costs_are_for_each_participant_where_that_is_what_counts(self, samples: Samples) -> None:
        assert "| 1000 | 1.00 |  | 1.00 |  |  |  |  |" in table(samples)


def test_plot_is_a_png_even_where_a_backend_ends(samples: Samples, tmp_path: Path) -> None:
    plot_scale(samples, tmp_path / "scale.png")
    for name in ("scale.png", "scale-cost.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_requests_are_counted_once_each_and_by_who_made_them() -> None:
    def event(agent: str, verb: str, stage: str) -> str:
        return json.dumps({"userAgent": agent, "verb": verb, "stage": stage})

    log = [
        event("elasticjob-swarm", "watch", "ResponseStarted"),
        event("elasticjob-swarm", "watch", "ResponseComplete"),
        event("elasticjob-swarm", "patch", "ResponseComplete"),
        event("kopf/1.0 (x)", "list", "ResponseComplete"),
        '{"userAgent": "cut o',
    ]
    assert count_requests("\n".join(log)) == {"elasticjob-swarm": 2, "kopf": 1}


class TestCommonRound:
    @staticmethod
    def passed(rank: int, returned: float = 2.0, size: int = 2, number: int = 7) -> Passed:
        return Passed(1.0 + rank / 10, 1.3, 1.5 + rank, returned, rank, size, number, "127.0.0.1:1")

    def test_is_timed_from_the_last_call_to_the_last_return(self) -> None:
        found = common_round([self.passed(0, 3.0), self.passed(1, 2.5)], 2, call_at=0.9)
        assert found.seconds == pytest.approx(1.9)
        assert (found.first_seen, found.last_seen) == (1.5, 2.5)

    @pytest.mark.parametrize(
        "answers", [[(0, 2, 7), (0, 2, 7)], [(0, 2, 7), (1, 2, 8)], [(0, 3, 7), (1, 3, 7)]]
    )
    def test_two_rounds_or_ranks_are_none(self, answers: list[tuple[int, int, int]]) -> None:
        with pytest.raises(SwarmError):
            common_round([self.passed(rank, 2.0, size, number) for rank, size, number in answers], 2, 0.9)


class TestStoreClient:
    """Against torch's own server: what is written by one client is read by the other."""

    @staticmethod
    def serve() -> TCPStore:
        return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def test_does_what_a_barrier_needs(self) -> None:
        server = self.serve()
        theirs = PrefixStore("job/1", server)

        async def barrier() -> bytes:
            client = await StoreClient.connect("127.0.0.1", server.port, "job/1", 10)
            client.set("here", "me")
            assert await client.add("count", 2) == 2
            assert await client.add("count", 3) == 5
            waiting = asyncio.ensure_future(client.wait("all"))
            other = await StoreClient.connect("127.0.0.1", server.port, "job/1", 10)
            assert await other.add("count", 0) == 5
            assert not waiting.done()
            theirs.set("all", "yes")
            await asyncio.wait_for(waiting, 10)
            value = await client.get("all")
            client.close()
            other.close()
            return value

        assert asyncio.run(barrier()) == b"yes"
        assert (theirs.get("here"), theirs.get("count")) == (b"me", b"5")

    def test_a_store_may_be_put_behind_a_port_that_others_have_called(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]

        def serve() -> TCPStore:
            return TCPStore(
                "127.0.0.1",
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=10),
                master_listen_fd=listening.detach(),
            )

        async def early() -> int:
            calling = asyncio.ensure_future(StoreClient.connect("127.0.0.1", port, "x", 10))
            server = await asyncio.to_thread(serve)
            count = await (await calling).add("count", 1)
            del server
            return count

        assert asyncio.run(early()) == 1

    def test_who_is_no_store_is_told(self) -> None:
        async def connect() -> None:
            async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.close()

            async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                with pytest.raises(StoreError):
                    await StoreClient.connect("127.0.0.1", port, "x", 10)

        asyncio.run(connect())


def test_aims_that_were_missed_are_named(samples: Samples) -> None:
    assert missed_aims(samples) == []
    for _ in range(3):
        samples.add(Sample("rejoin", "k8s", 4000, 9.0, figures={"operator_megabytes": 301.0}))
    for n in (32, 1000):
        samples.add(Sample("rejoin", "k8s", n, 0.1, figures={"watch_bytes": 14.0 * n**2}))
    assert missed_aims(samples) == [
        "rejoin of 4000 took 9.00 s, and shall take 8 s",
        "rejoin of 4000: the operator has 301 MB",
        "the bytes of all watches of a re-join grow as N^2.00",
    ]
