"""Flags, variables, defaults, in this order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import elasticjob
from elasticjob_operator.__main__ import choose, parse
from elasticjob_operator.leadership.core import Place, Timing
from elasticjob_operator.logs import LogSettings
from elasticjob_operator.settings import BadSetting, MetricsSettings, Settings


def chosen(flags: str = "", **environ: str) -> Settings:
    return choose(parse(flags.split()), environ)


def test_without_anything_all_namespaces_are_served_and_nobody_is_elected() -> None:
    assert chosen() == Settings()


def test_namespaces_of_the_command_line_win() -> None:
    assert chosen(ELASTICJOB_NAMESPACES="a, b").namespaces == ("a", "b")
    assert chosen("-n c -n d -n c", ELASTICJOB_NAMESPACES="a").namespaces == ("c", "d")


def test_the_image_of_the_handler_is_of_the_operator_s_version_unless_another_is_named() -> None:
    assert chosen().handler_image == f"ghcr.io/elasticjob/elasticjob-handler:{elasticjob.__version__}"
    assert chosen(ELASTICJOB_HANDLER_IMAGE="here/handler@sha256:1").handler_image == "here/handler@sha256:1"
    assert chosen("--handler-image mine:2", ELASTICJOB_HANDLER_IMAGE="here:1").handler_image == "mine:2"


def test_when_the_handlers_image_is_pulled_is_one_of_three_words() -> None:
    assert chosen(ELASTICJOB_HANDLER_IMAGE_PULL_POLICY="Never").handler_pull_policy == "Never"
    flag = "--handler-image-pull-policy Always"
    assert chosen(flag, ELASTICJOB_HANDLER_IMAGE_PULL_POLICY="Never").handler_pull_policy == "Always"
    with pytest.raises(BadSetting, match="must be Always, IfNotPresent or Never, found 'always'"):
        chosen(ELASTICJOB_HANDLER_IMAGE_PULL_POLICY="always")


def test_the_time_to_live_of_jobs_that_say_none() -> None:
    assert chosen().job_defaults.ttl_after_finished is None
    assert chosen("--default-ttl-seconds-after-finished 0").job_defaults.ttl_after_finished == 0
    environ = {"ELASTICJOB_DEFAULT_TTL_SECONDS_AFTER_FINISHED": "3600"}
    assert chosen(**environ).job_defaults.ttl_after_finished == 3600
    for wrong in ("1h", "-1", str(2**31), "³"):
        with pytest.raises(BadSetting, match="must be a whole number of seconds up to 2147483647, found"):
            chosen(ELASTICJOB_DEFAULT_TTL_SECONDS_AFTER_FINISHED=wrong)


def test_labels_that_say_where_nodes_are() -> None:
    assert chosen().topology[1] == "topology.kubernetes.io/zone"
    assert chosen("--topology-keys a.example/row,rack").topology == ("a.example/row", "rack")
    assert chosen(ELASTICJOB_TOPOLOGY_KEYS="off").topology == ()
    with pytest.raises(BadSetting, match="ELASTICJOB_TOPOLOGY_KEYS must be keys of labels with commas"):
        chosen(ELASTICJOB_TOPOLOGY_KEYS="rack=7")


def test_taints_that_say_that_a_node_is_about_to_go() -> None:
    assert "karpenter.sh/disrupted" in chosen().notice_taints
    flag = "--node-notice-taints a.example/b,ToBeDeletedByClusterAutoscaler,a.example/b"
    assert chosen(flag).notice_taints == ("a.example/b", "ToBeDeletedByClusterAutoscaler")
    assert chosen(ELASTICJOB_NODE_NOTICE_TAINTS="off").notice_taints == ()
    for wrong in ("a=b", "a:NoSchedule", "a,,b", "A.example/b", "-"):
        with pytest.raises(BadSetting, match="must be keys of taints with commas between them, such as"):
            chosen(ELASTICJOB_NODE_NOTICE_TAINTS=wrong)


def test_whose_pod_groups_jobs_may_have() -> None:
    assert chosen().gang_scheduling == ()
    flags = "--gang-scheduling=Volcano --gang-scheduling=Kubernetes"
    assert chosen(flags, ELASTICJOB_GANG_SCHEDULING="Coscheduling").gang_scheduling == (
        "Volcano",
        "Kubernetes",
    )
    assert chosen(ELASTICJOB_GANG_SCHEDULING="Coscheduling, Kubernetes").gang_scheduling == (
        "Coscheduling",
        "Kubernetes",
    )
    for wrong in ("true", "None", "volcano"):
        with pytest.raises(
            BadSetting, match=f"some of Kubernetes, Coscheduling, Volcano .*; found '{wrong}'"
        ):
            chosen(ELASTICJOB_GANG_SCHEDULING=wrong)


def test_how_much_is_logged_and_as_what() -> None:
    assert chosen().log == LogSettings("info", "text")
    given = chosen("--log-level=warning --log-format=json", ELASTICJOB_LOG_LEVEL="error")
    assert given.log == LogSettings("warning", "json")
    assert chosen("-v", ELASTICJOB_LOG_FORMAT="JSON").log == LogSettings("debug", "json")
    with pytest.raises(BadSetting, match="must be debug, info, warning or error, found 'loud'"):
        chosen(ELASTICJOB_LOG_LEVEL="loud")
    with pytest.raises(BadSetting, match="LOG_FORMAT must be text or json, found 'xml'"):
        chosen("--log-format=xml")


def test_the_deadline_of_jobs_that_say_none() -> None:
    assert chosen().job_defaults.active_deadline is None
    assert chosen("--default-active-deadline-seconds 60").job_defaults.active_deadline == 60
    with pytest.raises(BadSetting, match="seconds from 1 up to 2147483647, found '0'"):
        chosen(ELASTICJOB_DEFAULT_ACTIVE_DEADLINE_SECONDS="0")


def test_the_limits_of_jobs_that_say_none() -> None:
    assert chosen().job_defaults.limits == {}
    limits = {"infrastructure": {"maxRestarts": 20, "windowSeconds": 60}, "idleDeadlineSeconds": 600}
    assert chosen(ELASTICJOB_DEFAULT_FAILURE_POLICY=json.dumps(limits)).job_defaults.limits == limits


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("{", "must be JSON, such as"),
        ("[]", r"must be an object, found \[\]"),
        ('{"rules": []}', "has rules; expected some of application, hangTimeoutSeconds"),
        ('{"application": 3}', "application must be an object, found 3"),
        (
            '{"application": {"restarts": 3}}',
            "application has restarts; expected some of maxRestarts, windowSeconds",
        ),
        (
            '{"preemption": {"maxRestarts": -1}}',
            "maxRestarts must be a whole number from 0 to 2147483647, found -1",
        ),
        ('{"hangTimeoutSeconds": true}', "hangTimeoutSeconds must be a whole number from 1 to 2147483647"),
    ],
)
def test_limits_that_no_job_could_have(wrong: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        chosen(ELASTICJOB_DEFAULT_FAILURE_POLICY=wrong)


def test_an_election_with_the_defaults() -> None:
    expected = Place("here", "elasticjob-operator", Timing(12.0, 8.0, 2.0))
    assert chosen("--leader-elect", POD_NAMESPACE="here").election == expected
    assert chosen(ELASTICJOB_LEADER_ELECT="true", POD_NAMESPACE="here").election == expected


def test_flags_of_the_election_win() -> None:
    environ = {
        "ELASTICJOB_LEADER_ELECT": "true",
        "ELASTICJOB_LEADER_ELECT_LEASE_DURATION": "30s",
        "ELASTICJOB_LEADER_ELECT_RETRY_PERIOD": "1500ms",
        "ELASTICJOB_LEADER_ELECT_RESOURCE_NAME": "theirs",
        "POD_NAMESPACE": "here",
    }
    flags = "--leader-elect-resource-namespace there --leader-elect-lease-duration 1m"
    assert chosen(flags, **environ).election == Place("there", "theirs", Timing(60.0, 8.0, 1.5))
    assert chosen("--no-leader-elect", **environ).election is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("[::]:9090", ("::", 9090)),
        (":80", ("0.0.0.0", 80)),
        ("", None),
    ],
)
def test_where_the_probes_are_served(text: str, address: tuple[str, int] | None) -> None:
    assert chosen(f"--health-probe-bind-address={text}").probes == address
    assert chosen(ELASTICJOB_HEALTH_PROBE_BIND_ADDRESS=text).probes == address


def test_metrics_are_served_with_the_probes_on_a_port_of_their_own_or_not_at_all() -> None:
    assert chosen().metrics == MetricsSettings(served=True, address=None)
    assert chosen("--metrics-bind-address=[::]:9091").metrics.address == ("::", 9091)
    environ = {"ELASTICJOB_METRICS_BIND_ADDRESS": "off"}
    assert chosen(**environ).metrics == MetricsSettings(served=False, address=None)
    assert chosen("--metrics-bind-address :9091", **environ).metrics.served
    assert not chosen("--metrics-bind-address=OFF").metrics.served


def test_how_many_jobs_have_metrics_of_their_own() -> None:
    assert (chosen().metrics.per_job, chosen().metrics.max_jobs) == (True, 1_000)
    environ = {"ELASTICJOB_METRICS_PER_JOB": "false", "ELASTICJOB_METRICS_MAX_JOBS": "50"}
    assert chosen(**environ).metrics == MetricsSettings(per_job=False, max_jobs=50)
    assert chosen("--metrics-per-job --metrics-max-jobs 0", **environ).metrics == MetricsSettings(max_jobs=0)
    assert not chosen("--no-metrics-per-job").metrics.per_job


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ("--health-probe-bind-address 8080", {}, "an address and a port, such as 0.0.0.0:8080, found '8080'"),
        ("--leader-elect", {}, "set --leader-elect-resource-namespace or ELASTICJOB_LEADER_ELECT_RESOURCE"),
        ("", {"ELASTICJOB_LEADER_ELECT": "yes"}, "must be true or false, found 'yes'"),
        (
            "--leader-elect --leader-elect-retry-period soon",
            {"POD_NAMESPACE": "x"},
            "'soon' is not a duration",
        ),
        ("--leader-elect --leader-elect-lease-duration 5s", {"POD_NAMESPACE": "x"}, "found 5 s, 8 s, 2 s"),
        ("--metrics-bind-address 9091", {}, "an address and a port, such as 0.0.0.0:8080, found '9091'"),
        ("--metrics-max-jobs -1", {}, "must be a whole number of jobs, found '-1'"),
        ("", {"ELASTICJOB_METRICS_PER_JOB": "no"}, "must be true or false, found 'no'"),
    ],
)
def test_what_makes_no_sense_is_said(flags: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        chosen(flags, **environ)


def test_a_namespace_has_defaults_of_its_own() -> None:
    given = {
        "team-a": {"ttlSecondsAfterFinished": 0, "activeDeadlineSeconds": ""},
        "team-b": {"failurePolicy": {"application": {"maxRestarts": 1}, "idleDeadlineSeconds": 600}},
    }
    defaults = chosen(
        "--default-active-deadline-seconds 60",
        ELASTICJOB_DEFAULT_FAILURE_POLICY='{"application": {"maxRestarts": 9}, "hangTimeoutSeconds": 5}',
        ELASTICJOB_NAMESPACE_DEFAULTS=json.dumps(given),
    ).job_defaults
    a, b, c = (defaults.of(f"team-{name}") for name in "abc")
    assert (a.ttl_after_finished, b.ttl_after_finished, c.ttl_after_finished) == (0, None, None)
    assert (a.active_deadline, b.active_deadline, c.active_deadline) == (60, 60, 60)
    assert a.limits == c.limits == {"application": {"maxRestarts": 9}, "hangTimeoutSeconds": 5}
    assert b.limits == {
        "application": {"maxRestarts": 1},
        "idleDeadlineSeconds": 600,
        "hangTimeoutSeconds": 5,
    }


def test_the_memory_checkpoints_of_jobs_that_say_nothing_of_them() -> None:
    assert chosen().job_defaults.memory_checkpoints is None
    assert chosen(ELASTICJOB_DEFAULT_MEMORY_CHECKPOINTS="{}").job_defaults.memory_checkpoints is None
    defaults = chosen(
        ELASTICJOB_DEFAULT_MEMORY_CHECKPOINTS='{"perPod": "8Gi", "copies": 0}',
        ELASTICJOB_NAMESPACE_DEFAULTS='{"a": {"memoryCheckpoints": {"perPod": 0}}, "b": {}}',
    ).job_defaults
    assert defaults.of("a").memory_checkpoints == {"perPod": 0}
    assert defaults.of("b").memory_checkpoints == {"perPod": "8Gi", "copies": 0}
    assert defaults.of("c").memory_checkpoints == {"perPod": "8Gi", "copies": 0}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("{", 'must be JSON, such as {"perPod": "8Gi"}'),
        ("[]", r"must be an object, found \[\]"),
        ("8", "must be an object, found 8"),
        ('{"perPod": 1, "copy": 1}', "has copy; expected some of copies, perPod, spread"),
        ('{"copies": 1}', "perPod must be a number of bytes or a quantity such as 8Gi, found None"),
        ('{"perPod": "8GB"}', "found '8GB'"),
        ('{"perPod": -1}', "found -1"),
        ('{"perPod": true}', "found True"),
        ('{"perPod": 1, "copies": 2}', "copies must be 0 or 1, found 2"),
        ('{"perPod": 1, "copies": true}', "copies must be 0 or 1, found True"),
        ('{"perPod": 1, "spread": "Zone"}', "spread must be Node or None, found 'Zone'"),
    ],
)
def test_memory_checkpoints_that_no_job_could_have(wrong: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        chosen(ELASTICJOB_DEFAULT_MEMORY_CHECKPOINTS=wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("[]", r"NAMESPACE_DEFAULTS must be an object, found \[\]"),
        ('{"a": 3}', "NAMESPACE_DEFAULTS: a must be an object, found 3"),
        ('{"a": {"ttl": 3}}', "a has ttl; expected some of activeDeadlineSeconds, failurePolicy, memoryC"),
        ('{"a": {"activeDeadlineSeconds": 0}}', "activeDeadlineSeconds must be a whole number from 1"),
        ('{"a": {"failurePolicy": {"rules": []}}}', "a: failurePolicy has rules"),
        ('{"a": {"memoryCheckpoints": {"perPod": "x"}}}', "a: memoryCheckpoints: perPod must be"),
    ],
)
def test_defaults_of_a_namespace_that_no_job_could_have(wrong: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        chosen(ELASTICJOB_NAMESPACE_DEFAULTS=wrong)


def test_the_token_of_the_metrics(tmp_path: Path) -> None:
    assert chosen().metrics.token_file is None
    file = tmp_path / "token"
    with pytest.raises(BadSetting, match=r"must be a file with a token, found .*: No such file"):
        chosen(f"--metrics-token-file {file}")
    file.write_text("short\n")
    with pytest.raises(BadSetting, match="must have a token of 16 or more printable"):
        chosen(ELASTICJOB_METRICS_TOKEN_FILE=str(file))
    file.write_text("x" * 16 + "\n")
    assert chosen(f"--metrics-token-file {file}").metrics.token_file == file
