"""The refusal of a LimitRange names the container that it means."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_operator.act.refusals import refused_containers

MINE = {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}
OURS = {"requests": {"cpu": "250m"}, "limits": {"cpu": "250m", "memory": "64Mi"}}
TRAIN = " (container train)"
SPEC: dict[str, Any] = {
    "initContainers": [{"name": "elasticjob-handler", "resources": OURS}],
    "containers": [{"name": "train", "resources": MINE}],
}
HANDLER = " (init container elasticjob-handler, which the operator adds)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("minimum cpu usage per Container is 500m, but request is 250m", HANDLER),
        ("minimum memory usage per Container is 128Mi, but limit is 64Mi", HANDLER),
        ("maximum cpu usage per Container is 1, but request is 2", " (container train)"),
        ("maximum memory usage per Container is 512Mi, but limit is 1Gi.", " (container train)"),
        ("cpu max limit to request ratio per Container is 2, but provided ratio is 4", TRAIN),
        ("cpu max limit to request ratio per Container is 2, but provided ratio is 4.", TRAIN),
        ("maximum cpu usage per Container is 1.  No limit is specified", " (container train)"),
        (
            "[minimum cpu usage per Container is 500m, but request is 250m, maximum memory usage per "
            "Container is 512Mi, but limit is 1Gi]",
            f"{HANDLER[:-1]}, container train)",
        ),
        (
            "[cpu max limit to request ratio per Container is 2, but provided ratio is 9.000000, minimum "
            "memory usage per Container is 128Mi, but request is 64Mi]",
            f"{HANDLER[:-1]}, container train)",
        ),
        ("maximum cpu usage per Pod is 1, but request is 2", ""),
        ('exceeded quota: q, requested: pods=1', ""),
    ],
)  # fmt: skip
def test_the_container_is_named(words: str, said: str) -> None:
    assert refused_containers(f'pods "a-0-0" is forbidden: {words}', SPEC) == said


def test_what_fits_all_is_said_of_none() -> None:
    spec = {"containers": [{"name": "a"}, {"name": "b"}]}
    assert refused_containers("maximum cpu usage per Container is 1, but limit is 2", spec) == ""


def test_a_ratio_that_is_no_number_is_that_of_any_container() -> None:
    huge = {"requests": {"cpu": "1e-999999"}, "limits": {"cpu": "1e999999"}}
    spec = {"containers": [{"name": "train", "resources": huge}]}
    words = "cpu max limit to request ratio per Container is 2, but provided ratio is 4"
    assert refused_containers(words, spec) == TRAIN
