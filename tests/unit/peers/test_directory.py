"""What a directory takes for a failure of the API server: others could not write at that moment, either."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import cast

import pytest

from devcluster.wait import wait_for
from elasticjob.api.errors import ApiError
from elasticjob.api.listing import HttpListApi
from elasticjob.coordination.directory import Directory
from tests.unit.peers.test_pods import pod
from tests.unit.peers.watched import LABEL, Watched


class Reopened(Watched):
    """Its watch ends with an error when it is given up."""

    def reopen_watch(self) -> None:
        self.brings(ApiError("the connection was closed"))


@pytest.fixture
def watched() -> Reopened:
    return Reopened()


@pytest.fixture
def directory(watched: Reopened) -> Iterator[Directory]:
    follow = lambda api: api.follow_pods(LABEL, "mnist")  # noqa: E731
    made = Directory(cast(HttpListApi, watched), follow, "pods", lambda: None)
    watched.brings([pod("a")])
    wait_for(lambda: made.objects() is not None, 60, "the first list", interval=0.01)
    yield made
    made.stop()


def test_an_error_of_a_watch_is_a_failure(directory: Directory, watched: Reopened) -> None:
    assert directory.failed_seconds() == inf
    watched.brings(ApiError("no answer"), [pod("a")])
    wait_for(lambda: directory.failed_seconds() < inf, 60, "it has failed", interval=0.01)
    wait_for(lambda: directory.objects() is not None, 60, "the next list", interval=0.01)


def test_the_end_of_a_watch_that_was_given_up_is_none_but_that_of_the_list_after_it_is(
    directory: Directory, watched: Reopened
) -> None:
    directory.list_again()
    watched.brings([pod("a"), pod("b")])
    wait_for(lambda: len(directory.objects() or {}) == 2, 60, "the next list", interval=0.01)
    assert directory.failed_seconds() == inf
    directory.list_again()
    watched.brings(ApiError("no answer"), [pod("a")])
    wait_for(lambda: len(directory.objects() or {}) == 1, 60, "the next list", interval=0.01)
    assert directory.failed_seconds() < inf
