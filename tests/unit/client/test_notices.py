"""What the command line says on stderr of a server that is away."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

from elasticjob_client import Jobs


@pytest.mark.usefixtures("server")
def test_a_notice_stands_on_stderr_and_not_in_the_output(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Jobs] = []
    get = Jobs.get

    def noticed(jobs: Jobs, name: str) -> object:
        if not seen:
            jobs.notice("the API server does not answer; trying again for 5 minutes")
        seen.append(jobs)
        return get(jobs, name)

    monkeypatch.setattr(Jobs, "get", noticed)
    found = run("status", "mnist")
    assert "trying again" not in found.stdout
    assert found.stderr == "the API server does not answer; trying again for 5 minutes\n"
