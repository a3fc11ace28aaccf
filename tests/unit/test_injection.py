"""The handler put into pods: what is added, and that nothing of the user's is lost by it."""

from __future__ import annotations

import copy
import os
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from devcluster.nodeagent.env import PodFacts, Sources, command_line, container_env
from elasticjob.contract.quantity import parse
from elasticjob_operator.act.injection import EARLY_DIR, HANDLER_DIR, VOLUME, HandlerImage
from elasticjob_operator.act.template import path_warnings, pod_of
from elasticjob_operator.plan.state.model import Job, JobSpec
from tests.unit.test_template import RICH, simple

IMAGE = HandlerImage("handler:1")
ROOT = Path(__file__).resolve().parents[2]


def a_job(template: dict[str, Any] | None, **spec: Any) -> Job:
    return Job("team-a", "mnist", "uid-1", 1, JobSpec(template=template, **spec))


def injected(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of the pod that is made of a template's."""
    found: dict[str, Any] = pod_of(a_job({"spec": spec}), 0, 0, IMAGE)["spec"]
    return found


def running(container: dict[str, Any], image: dict[str, str], **config: str) -> tuple[list[str], str]:
    """Its words and its PYTHONPATH, once it runs: kubelet's work is done by the node agent's own code, the
    wrapper's by a real sh. ``image``: what the image sets; ``config``: a ConfigMap named so."""
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {}}
    sources = Sources(config_maps={"config": config})
    env = {**image, **container_env(container, PodFacts(pod, "10.0.0.1", "10.0.0.2"), sources, {})}
    words = command_line(container, env)
    if not words:
        return words, env["PYTHONPATH"]
    prints = ["sh", "-c", 'printf "%s\\n" "$PYTHONPATH" "$0" "$@"']
    # The user's command is what sh would become: let it tell what it was given.
    at = len(words) - len(container["command"]) - len(container.get("args") or []) + 3
    asks = [*words[:at], *prints, *words[at:]] if words[:2] == ["sh", "-c"] else [*prints, *words]
    env["PATH"] = os.defpath
    answer = subprocess.run(asks, env=env, capture_output=True, text=True, check=True, timeout=120)
    path, *rest = answer.stdout.splitlines()
    return rest, path


def test_pods_get_a_volume_an_init_container_and_an_import_path() -> None:
    before = copy.deepcopy(RICH)
    job = a_job(RICH, replicas=4)
    spec = pod_of(job, 2, 1, IMAGE)["spec"]
    assert before == RICH, "the template itself was changed"
    plain = pod_of(a_job(RICH, replicas=4, handler_source="Image"), 2, 1, IMAGE)["spec"]
    assert spec["volumes"] == [*plain["volumes"], {"name": VOLUME, "emptyDir": {"sizeLimit": "32Mi"}}]
    first, *others = spec["initContainers"]
    assert others == plain["initContainers"], "the user's own stay as they are, after ours"
    assert first["image"] == IMAGE.name
    assert "imagePullPolicy" not in first, "Kubernetes decides by the tag"
    said = pod_of(job, 2, 1, HandlerImage("handler:1", "Never"))["spec"]["initContainers"][0]
    assert said == {**first, "imagePullPolicy": "Never"}
    logs, trainer = spec["containers"]
    plain_logs, plain_trainer = plain["containers"]
    assert logs == plain_logs, "the training container alone"
    mount = {"name": VOLUME, "mountPath": HANDLER_DIR, "readOnly": True}
    assert trainer["volumeMounts"] == [*plain_trainer["volumeMounts"], mount]
    assert trainer["command"][:2] == ["sh", "-c"]
    assert trainer["command"][3:] == plain_trainer["command"]
    touched = {"volumeMounts", "command"}
    assert {k: v for k, v in trainer.items() if k not in touched} == {
        k: v for k, v in plain_trainer.items() if k not in touched
    }
    touched = {"volumes", "initContainers", "containers"}
    assert {k: v for k, v in spec.items() if k not in touched} == {
        k: v for k, v in plain.items() if k not in touched
    }


MOST = {"cpu": "250m", "memory": "64Mi"}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param({}, {}, id="BestEffort remains"),
        pytest.param(
            {"requests": {"cpu": "100m", "memory": "8Gi"}},
            {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}},
            id="a small pod",
        ),
        pytest.param(
            {"requests": {"cpu": "1m", "memory": "1Mi"}},
            {"requests": {"cpu": "1m", "memory": "1Mi"}},
            id="a limit in which nothing runs",
        ),
        pytest.param(
            {"requests": {"cpu": "0.1", "memory": "1e7"}, "limits": {"cpu": 2}},
            {"requests": {"cpu": "0.1", "memory": "1e7"}, "limits": {"cpu": "250m"}},
            id="other spellings",
        ),
        pytest.param(
            {"requests": {"cpu": "8", "memory": "1Gi"}, "limits": {"cpu": "8", "memory": "1Gi"}},
            {"requests": MOST, "limits": MOST},
            id="Guaranteed remains",
        ),
        pytest.param(
            {"limits": {"cpu": "100m", "memory": "32Mi", "nvidia.com/gpu": "8"}},
            {"limits": {"cpu": "100m", "memory": "32Mi"}},
            id="Guaranteed by limits alone, and small",
        ),
        pytest.param(
            {"requests": {"cpu": "much"}},
            {"requests": {"cpu": "250m"}, "limits": {"cpu": "250m"}},
            id="no quantity",
        ),
        pytest.param(
            {"requests": {"cpu": "1e1000000", "memory": "1e999999E"}, "limits": {"memory": "1e999999E"}},
            {"requests": MOST, "limits": MOST},
            id="greater than any number",
        ),
    ],
)
def test_init_container_asks_for_no_more_than_the_one_that_trains(
    theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    """A pod is given the larger of the two: it shall not need more room for the handler."""
    containers = [{"name": "main", "resources": theirs}, {"name": "logs", "resources": {"requests": MOST}}]
    (container,) = injected({"containers": containers})["initContainers"]
    assert container["resources"] == ours


def test_where_less_is_refused_it_asks_for_the_same() -> None:
    theirs = {
        "requests": {"cpu": 2, "memory": "1Gi", "ephemeral-storage": "1Gi", "nvidia.com/gpu": 1},
        "limits": {"nvidia.com/gpu": 1},
    }
    template = {"spec": {"containers": [{"name": "main", "resources": theirs}]}}
    (container,) = pod_of(a_job(template), 0, 0, IMAGE, is_small=False)["spec"]["initContainers"]
    asked = {"requests": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}}
    assert container["resources"] == asked


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("100m", "0.1"), ("1", "1"), (2, "2"), ("0.5", "0.5"), (".5", "0.5"), ("5.", "5"), ("2e3", "2000")],
        *[("1E2", "100"), ("1E", "1e18"), ("1k", "1000"), ("1Ki", "1024"), ("1.5Gi", "1610612736")],
        *[("+1n", "1e-9"), ("0", "0"), ("", None), ("m", None), (".", None), ("1..5", None), ("1K", None)],
        *[("1e1000000", None), ("-1e1000000", None), ("1e999999E", None), ("1e999999Ei", None)],
        *[("1e99999999999999999999", None), ("1e-99999999999999999999", None), ("1e-2000000", "0")],
    ],
)
def test_quantities(text: object, number: str | None) -> None:
    assert parse(text) == (None if number is None else Decimal(number))


def test_gpus_of_any_number_are_left_to_torch_to_count() -> None:
    """The API server takes the quantity for the greatest that it knows."""
    main = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1e1000000"}}}
    made = pod_of(a_job({"spec": {"containers": [main]}}), 0, 0, IMAGE)["spec"]["containers"][0]
    assert {"name": "PET_NPROC_PER_NODE", "value": "gpu"} in made["env"]


def test_init_container_may_do_nothing() -> None:
    (container,) = injected({"containers": [{"name": "main"}]})["initContainers"]
    context = container["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["volumeMounts"] == [{"name": VOLUME, "mountPath": HANDLER_DIR}]


@pytest.mark.parametrize(
    ("pod", "user"),
    [({}, None), ({"runAsUser": 1000}, None), ({"runAsUser": 0}, 65532), ({"fsGroup": 5}, None)],
)
def test_init_container_is_not_root_where_the_pod_is(pod: dict[str, Any], user: int | None) -> None:
    spec = injected({"containers": [{"name": "main"}], "securityContext": pod})
    assert spec["initContainers"][0]["securityContext"].get("runAsUser") == user
    assert spec["securityContext"] == pod


@pytest.mark.parametrize("template", [RICH, simple(command=["torchrun", "train.py"])])
def test_nothing_is_added_where_the_image_has_the_handler(template: dict[str, Any]) -> None:
    for job in (a_job(template, handler_source="Image"), a_job(None)):
        assert not path_warnings(job)
    text = str(pod_of(a_job(template, handler_source="Image"), 0, 0, IMAGE))
    assert IMAGE.name not in text
    assert VOLUME not in text
    assert "PYTHONPATH" not in text


VALUE = [{"name": "A", "value": "/a"}, {"name": "PYTHONPATH", "value": "$(A)/b:/c"}]
FROM = [
    {"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "P"}}},
    {"name": "LATER", "value": "$(PYTHONPATH)"},
]
ALL_OF_CONFIG = [{"configMapRef": {"name": "config"}}]
COMMAND = {"command": ["torchrun", "--flag"], "args": ["train.py", "a b", "$HOME", ""]}


@pytest.mark.parametrize(
    ("container", "image", "config", "expected"),
    [
        pytest.param({}, {}, {}, "", id="none"),
        pytest.param(COMMAND, {}, {}, "", id="none, command"),
        pytest.param(COMMAND, {"PYTHONPATH": "/image"}, {}, "/image", id="the image's, command"),
        pytest.param({"env": VALUE}, {"PYTHONPATH": "/image"}, {}, "/a/b:/c", id="the template's"),
        pytest.param({"env": VALUE, **COMMAND}, {}, {}, "/a/b:/c", id="the template's, command"),
        pytest.param({"env": FROM}, {}, {"P": "/x:/y"}, "/x:/y", id="by reference"),
        pytest.param({"env": FROM, **COMMAND}, {}, {"P": "/x:/y"}, "/x:/y", id="by reference, command"),
        pytest.param({"envFrom": ALL_OF_CONFIG}, {}, {"PYTHONPATH": "/all"}, "/all", id="envFrom"),
        pytest.param(
            {"envFrom": ALL_OF_CONFIG, **COMMAND}, {}, {"PYTHONPATH": "/all"}, "/all", id="envFrom, command"
        ),
        pytest.param(
            {"envFrom": ALL_OF_CONFIG, "env": VALUE}, {}, {"PYTHONPATH": "/all"}, "/a/b:/c", id="both"
        ),
        pytest.param(
            {"env": [{"name": "PYTHONPATH", "value": ""}], **COMMAND},
            {"PYTHONPATH": "/image"}, {}, "", id="an empty one",
        ),
        pytest.param({"env": [*VALUE, {"name": "PYTHONPATH", "value": "/2"}]}, {}, {}, "/2", id="two"),
    ],
)  # fmt: skip
def test_the_import_path_is_extended(
    container: dict[str, Any], image: dict[str, str], config: dict[str, str], expected: str
) -> None:
    made = injected({"containers": [{"name": "main", **copy.deepcopy(container)}]})["containers"][0]
    words, path = running(made, image, **config)
    assert path == f"{HANDLER_DIR}:{expected}".rstrip(":"), "no empty entry: that is the working directory"
    assert words == [*container.get("command", []), *container.get("args", [])]
    if container.get("env") == FROM:
        (later,) = [e for e in made["env"] if e["name"] == "LATER"]
        names = [e["name"] for e in made["env"]]
        assert names.index("PYTHONPATH") < names.index("LATER"), later


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "PET_RDZV_CONF", "value": "join_timeout=9,warm=on"}]},
        {"env": [{"name": "ELASTICJOB_WARM_WORKERS", "value": "on"}]},
        {"command": ["torchrun", "--rdzv-conf=warm=on", "train.py"]},
        {"command": ["torchrun"], "args": ["--rdzv-conf", "warm=on", "train.py"], "env": VALUE},
    ],
)
def test_with_warm_workers_torchrun_s_start_is_ours_first(container: dict[str, Any]) -> None:
    (made,) = injected({"containers": [{"name": "main", **copy.deepcopy(container)}]})["containers"]
    _, path = running(made, {})
    expected = ":/a/b:/c" if container.get("env") is VALUE else ""
    assert path == f"{EARLY_DIR}:{HANDLER_DIR}{expected}"
    assert (ROOT / "handler" / EARLY_DIR.removeprefix(f"{HANDLER_DIR}/") / "sitecustomize.py").is_file()


def test_the_wrapper_leaves_no_process_of_its_own_and_passes_the_end_on() -> None:
    (made,) = injected({"containers": [{"name": "main", "command": ["sh", "-c", "echo $$; exit 7"]}]})[
        "containers"
    ]
    with subprocess.Popen(made["command"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == process.pid, "the user's command is the container's process"
    assert process.returncode == 7


@pytest.mark.parametrize("name", ["spark.driver.host", "X-TOKEN"])
def test_no_variable_is_lost_to_the_wrapper(name: str) -> None:
    """Kubernetes takes such names; dash does not pass them on."""
    container: dict[str, Any] = {**COMMAND, "env": [{"name": name, "value": "kept"}]}
    (made,) = injected({"containers": [{"name": "main", **container}]})["containers"]
    assert made["command"] == COMMAND["command"]
    words, path = running(made, {"PYTHONPATH": "/image"})
    assert path == HANDLER_DIR
    assert words == [*COMMAND["command"], *COMMAND["args"]]
    assert {"name": name, "value": "kept"} in made["env"]
    (warning,) = path_warnings(a_job(simple(**container)))
    assert f"has variables that sh would drop ({name})" in warning
    assert not path_warnings(a_job(simple(**{**container, "env": [*container["env"], *VALUE]})))


def test_a_warning_where_the_image_s_import_path_may_be_lost() -> None:
    (warning,) = path_warnings(a_job(simple()))
    assert "PYTHONPATH from the image of container 'main', if there is one, is replaced" in warning
    assert HANDLER_DIR in warning
    for container in (COMMAND, {"env": VALUE}, {"env": FROM}, {"envFrom": ALL_OF_CONFIG}):
        assert not path_warnings(a_job(simple(**container)))
