"""What a queue says of the nodes of pods, and what it gets to know of them."""

from __future__ import annotations

import json
from typing import Any

from elasticjob_operator.plan.queue.placement import placed, pod_set
from tests.unit.queue.words import base

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "mine"}],
        "initContainers": [{"name": "init", "command": ["long"], "resources": {"requests": {"cpu": "2"}}}],
        "containers": [
            {"name": "train", "image": "i", "env": [{"name": "TOKEN", "value": "secret"}], "resources": {}}
        ],
        "volumes": [{"name": "data"}],
    },
}
H100 = {"nodeLabels": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}


def test_a_pod_set_has_what_decides_on_quota_and_nothing_else() -> None:
    made = pod_set(TEMPLATE, 3, {})
    assert (made["name"], made["count"]) == ("main", 3)
    assert made["template"]["spec"] == {
        "restartPolicy": "Never",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "mine"}],
        "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "2"}}}],
        "containers": [{"name": "train", "image": "i"}],
    }


def test_quota_is_asked_for_devices_and_resources_of_the_pod_too() -> None:
    more = {"resourceClaims": [{"name": "gpus"}], "resources": {"requests": {"cpu": "4"}}}
    spec = pod_set({"spec": {**TEMPLATE["spec"], **more}}, 1, {})["template"]["spec"]
    assert {key: spec[key] for key in more} == more


def test_an_extra_asks_for_the_nodes_of_its_base() -> None:
    """Each Workload gets its flavor alone: a base on one kind of GPU and an extra on another would be one job
    on both."""
    selector = pod_set(TEMPLATE, 1, {"gpu": "h100"})["template"]["spec"]["nodeSelector"]
    assert selector == {"disk": "ssd", "gpu": "h100"}


def test_pods_get_labels_of_nodes_and_tolerations_of_the_flavors() -> None:
    made = placed(TEMPLATE, base(), [H100])
    assert made["spec"]["nodeSelector"] == {"disk": "ssd", "gpu": "h100"}
    assert made["spec"]["tolerations"] == [{"key": "mine"}, {"key": "gpu", "operator": "Exists"}]
    assert made["spec"]["volumes"] == TEMPLATE["spec"]["volumes"]
    assert TEMPLATE["spec"]["nodeSelector"] == {"disk": "ssd"}, "the job's own template is not changed"


def test_pods_get_what_admission_checks_ask_for() -> None:
    update = {
        "labels": {"a": "b"},
        "annotations": {"provisioning": "yes"},
        "nodeSelector": {"class": "queued"},
        "tolerations": [{"key": "new"}],
    }
    made = placed(TEMPLATE, base(updates=json.dumps([update])), [H100])
    assert made["metadata"] == {
        "labels": {"team": "vision", "a": "b"},
        "annotations": {"provisioning": "yes"},
    }
    assert made["spec"]["nodeSelector"] == {"disk": "ssd", "gpu": "h100", "class": "queued"}
    assert [one["key"] for one in made["spec"]["tolerations"]] == ["mine", "gpu", "new"]


def test_a_flavor_without_anything_changes_nothing() -> None:
    assert placed(TEMPLATE, base(), [{}]) == TEMPLATE
