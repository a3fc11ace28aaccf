"""elasticjob.checkpoint with real process groups: kills, damage, other world sizes, rounds that race."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import s3_server
from tests.e2e.checkpoint_rounds import DEADLINE_SECONDS, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, str(tmp_path / "checkpoints"), {})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The losses of eight steps on one rank, undisturbed."""
    directory = tmp_path_factory.mktemp("reference")
    undisturbed = Run(directory, str(directory / "checkpoints"), {}).train(1, 1, 8, every=100, wrapper="ddp")
    losses: dict[str, float] = undisturbed[0]["losses"]
    return losses


def test_the_world_size_changes_from_4_to_3_to_4(run: Run, reference: dict[str, float]) -> None:
    run.train(4, 1, 2)
    assert {outcome["resumed"] for outcome in run.train(3, 2, 5)} == {2}
    last = run.train(4, 3, 8)
    assert {outcome["resumed"] for outcome in last} == {4}
    assert last[0]["losses"] == pytest.approx(reference, rel=1e-4)
    assert run.names() == ["r000003-s00000006", "r000003-s00000008"]
    assert any("step 4, saved by 3 ranks, loaded by 4" in line for line in last[0]["log"])


def test_ddp_saves_what_fsdp_loads(run: Run, reference: dict[str, float]) -> None:
    run.train(2, 1, 4, wrapper="ddp")
    assert run.train(3, 2, 8)[0]["losses"] == pytest.approx(reference, rel=1e-4)


@pytest.mark.parametrize(
    ("moment", "rank"),
    [("shard", 1), ("shard", 0), ("marker", 0)],
    ids=["a-shard", "a-shard-of-rank-0", "the-end"],
)
def test_a_kill_in_the_middle_of_a_save(
    run: Run, reference: dict[str, float], moment: str, rank: int
) -> None:
    with run.round(3, 1, 8, kill=(moment, rank, 4)) as going:
        going.outcomes(killed=rank)
    assert run.names() == ["r000001-s00000002", "r000001-s00000004 half"]
    outcomes = run.train(2, 2, 8)
    assert outcomes[0]["resumed"] == 2
    assert outcomes[0]["losses"] == pytest.approx(reference, rel=1e-4)
    assert [line for line in outcomes[0]["log"] if "half-written" in line and "s00000004" in line]
    assert run.names() == ["r000002-s00000006", "r000002-s00000008"]


def test_damaged_checkpoints_are_passed_over_and_named(run: Run, reference: dict[str, float]) -> None:
    run.train(2, 1, 6, keep=3)
    truncated, flipped = run.shard("s00000006"), run.shard("s00000004")
    truncated.write_bytes(truncated.read_bytes()[:-100])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    outcomes = run.train(3, 2, 8)
    assert outcomes[0]["resumed"] == 2
    assert outcomes[0]["losses"] == pytest.approx(reference, rel=1e-4)
    warnings = [line for line in outcomes[0]["log"] if line.startswith("passed over")]
    assert "s00000006" in warnings[0]
    assert "bytes, expected" in warnings[0]
    assert "s00000004" in warnings[1]
    assert "has the checksum" in warnings[1]
    assert run.names() == ["r000002-s00000006", "r000002-s00000008"]


def test_it_does_not_start_from_scratch_where_every_checkpoint_is_damaged(run: Run) -> None:
    run.train(2, 1, 4)
    run.shard("s00000002").unlink()
    (run.shard("s00000004").parent / "complete.json").write_bytes(b"{")
    error = run.fail(2, 2, 8)
    assert error.startswith("DamagedError: every complete checkpoint in")
    assert "is missing" in error
    assert "complete.json cannot be read" in error
    assert run.names() == ["r000001-s00000002", "r000001-s00000004"]


def held(path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_earlier_round_completes_nothing_once_a_later_one_has_begun(run: Run) -> None:
    gate = run.directory / "gate"
    with run.round(2, 1, 4, hold=("check", 4, str(gate))) as earlier:
        held(gate)
        assert run.train(2, 2, 3, every=3)[0]["resumed"] == 2
        gate.unlink()
        errors = {outcome["error"] for outcome in earlier.outcomes()}
    (error,) = errors
    assert re.match(
        r"StaleRoundError: round 2 of job job \(rank 0 in .*\) has begun in .* does not count$", error
    )
    assert run.names() == ["r000001-s00000002", "r000002-s00000003"]


def test_what_slips_through_after_the_last_check_is_not_called_saved(run: Run) -> None:
    """No store has a lock here: the marker would appear after the later round has begun."""
    gate = run.directory / "gate"
    with run.round(2, 1, 4, hold=("marker", 4, str(gate))) as earlier:
        held(gate)
        assert run.train(2, 2, 3)[0]["resumed"] == 2  # saves nothing
        gate.unlink()
        (error,) = {outcome["error"] for outcome in earlier.outcomes()}
        assert error.startswith("StaleRoundError: round 2 of job job")
    assert run.names() == ["r000001-s00000002"]
    assert run.train(2, 3, 6)[0]["resumed"] == 2


def test_a_round_that_is_over_can_not_begin(run: Run) -> None:
    run.train(1, 2, 2, wrapper="ddp")
    assert re.match(r"StaleRoundError: round 2 of job job .* has begun here", run.fail(2, 1, 2))


def test_a_job_in_another_jobs_directory_removes_nothing_and_does_not_bar_it(run: Run) -> None:
    run.train(1, 1, 4, wrapper="ddp", job="A")
    assert run.train(1, 1, 8, wrapper="ddp", job="B")[0]["resumed"] == 4
    theirs = ["r000001-s00000002", "r000001-s00000004"]
    assert run.names() == [*theirs, "r000001-s00000006", "r000001-s00000008"]
    again = run.train(1, 2, 6, wrapper="ddp", job="A")
    assert again[0]["resumed"] == 4, "its own, although B has a later one"
    assert run.names() == ["r000001-s00000004", "r000001-s00000006", "r000001-s00000008", "r000002-s00000006"]


def test_a_job_is_refused_while_another_one_uses_the_directory(run: Run) -> None:
    gate = run.directory / "gate"
    with run.round(1, 1, 4, hold=("check", 4, str(gate)), wrapper="ddp", job="A") as holder:
        held(gate)
        error = run.fail(2, 1, 4, job="B")
        assert re.match(
            r"StaleRoundError: .*/checkpoints is in use by round 1 of job A \(rank 0 in .*\): it renews "
            r"round-g0001-.* This process belongs to job B .* Give each job a directory",
            error,
        )
        gate.unlink()
        assert [outcome["error"] for outcome in holder.outcomes()] == [""]
    assert run.names() == ["r000001-s00000002", "r000001-s00000004"]


def test_without_an_elasticjob_each_start_goes_on_where_the_last_one_was(run: Run) -> None:
    assert [run.train(1, None, until, wrapper="ddp")[0]["resumed"] for until in (2, 4, 6)] == [0, 2, 4]


@pytest.fixture(
    params=[
        pytest.param(lambda _: s3_server.playing(), id="moto"),
        # Building the server takes minutes, the first time.
        pytest.param(s3_server.serving, id="versitygw", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ]
)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """A folder in an S3 server on loopback."""
    with request.param(tmp_path / "server") as address:
        yield Run(
            tmp_path,
            "s3://training/run",
            {
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": s3_server.KEY,
                "AWS_SECRET_ACCESS_KEY": s3_server.SECRET,
                "AWS_DEFAULT_REGION": s3_server.REGION,
            },
        )


def test_an_object_store(bucket: Run, reference: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    for key, value in bucket.environment.items():
        monkeypatch.setenv(key, value)
    store = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    store.mkdir("training")
    bucket.train(2, 1, 6, keep=3)
    newest, older = sorted(
        path for path in store.find("training/run") if "s00000006/__0" in path or "s00000004/__0" in path
    )[::-1]
    store.pipe_file(newest, store.cat_file(newest)[:-50])
    content = bytearray(store.cat_file(older))
    content[len(content) // 2] ^= 1
    store.pipe_file(older, bytes(content))

    outcomes = bucket.train(3, 2, 8)
    assert outcomes[0]["resumed"] == 2
    assert outcomes[0]["losses"] == pytest.approx(reference, rel=1e-4)
    assert len([line for line in outcomes[0]["log"] if line.startswith("passed over training/run/")]) == 2
    found = {path.rpartition("/")[2] for path in store.ls("training/run", refresh=True)}
    assert found == {
        "checkpoint-g0001-r000002-s00000006",
        "checkpoint-g0001-r000002-s00000008",
        f"round-g0001-r000002-{zlib.crc32(b'job'):08x}.json",
    }
    (path,) = store.glob("training/run/round-*.json")
    claim = json.loads(store.cat_file(path))
    assert (claim["job"], claim["complete"]) == ("job", ["checkpoint-g0001-r000001-s00000002"])
    assert claim["ended"]
    assert re.match(r"StaleRoundError: round 2 of job job .* has begun here", bucket.fail(2, 1, 8))


def test_errors_of_the_caller_are_said_before_anything_is_written(tmp_path: Path) -> None:
    import torch

    from elasticjob.checkpoint import Checkpoints

    with pytest.raises(ValueError, match="keep is 0, expected 1 or more"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(ModuleNotFoundError, match="fsspec cannot open addresses with nosuch://"):
        Checkpoints("nosuch://folder")
    checkpoints = Checkpoints(tmp_path / "run")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(TypeError, match=r"state\['optimizer'\] is an optimizer.*TrainState"):
        checkpoints.save(1, {"optimizer": optimizer})
    state = {"weights": torch.ones(3)}
    checkpoints.save(2, state)
    state["weights"].zero_()  # what is saved is what was there when save was called
    checkpoints.save(2, state)
    with pytest.raises(ValueError, match="step is 1, expected more than 2"):
        checkpoints.save(1, state)
    again = Checkpoints(tmp_path / "run")
    assert again.resume(state) == 2
    assert torch.equal(state["weights"], torch.ones(3))
