"""How the chart has the operator watched: its monitors, the metrics' token, alerts and the dashboard."""

from __future__ import annotations

import json

import pytest
import yaml

from charts.dashboard.queries import RUNBOOKS_AT
from charts.generate import NAMESPACE
from tests.chart.helm import Helm, objects, of_kind


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
def test_the_token_of_the_metrics_reaches_both_sides(helm: Helm, kind: str) -> None:
    secret = {"name": "metrics", "key": "bearer"}
    values = {"metrics": {"tokenSecret": secret, kind: {"enabled": True}}}
    (made,) = of_kind(helm, values, "Deployment")
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--metrics-token-file=/etc/elasticjob/metrics/token" in container["args"]
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/etc/elasticjob/metrics")
    assert volume["secret"] == {"secretName": "metrics", "items": [{"key": "bearer", "path": "token"}]}
    (monitor,) = of_kind(helm, values, kind[0].upper() + kind[1:])
    (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"] == {"credentials": secret}


@pytest.mark.parametrize(
    ("values", "port"), [({}, "health"), ({"port": 9091}, "metrics")], ids=["with the probes", "its own port"]
)
def test_monitors_scrape_the_port_of_the_metrics(helm: Helm, values: dict[str, int], port: str) -> None:
    """They are left out unless they are asked for: a cluster without their definitions would refuse them."""
    asked = {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}}
    for kind, field in (("ServiceMonitor", "serviceMonitor"), ("PodMonitor", "podMonitor")):
        made = objects(helm.template({"metrics": {**values, field: asked}}))
        (monitor,) = (one for one in made if one["kind"] == kind)
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        services = [one for one in made if one["kind"] == "Service"]
        if kind == "PodMonitor":
            assert monitor["spec"]["podMetricsEndpoints"] == [{"port": port, "interval": "30s"}]
            assert not services
        else:
            assert monitor["spec"]["endpoints"] == [{"port": "metrics", "interval": "30s"}]
            (service,) = services
            assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
            assert service["spec"]["ports"][0]["targetPort"] == port
    assert not {one["kind"] for one in objects(helm.template({}))} & {"ServiceMonitor", "PodMonitor"}


def test_alerts_are_left_out_unless_they_are_asked_for(helm: Helm) -> None:
    assert not of_kind(helm, {}, "PrometheusRule")
    assert not of_kind(
        helm, {"metrics": {"enabled": False, "prometheusRule": {"enabled": True}}}, "PrometheusRule"
    )


def test_alerts_are_those_of_the_file_for_the_pods_of_the_release(helm: Helm) -> None:
    file = (helm.chart / "files" / "alerts.yaml").read_text()
    (made,) = of_kind(helm, {"metrics": {"prometheusRule": {"enabled": True}}}, "PrometheusRule")
    assert made["spec"] == yaml.safe_load(file), "of a release called elasticjob in elasticjob-system"
    assert made["metadata"]["namespace"] == NAMESPACE
    ours = 'namespace="elasticjob-system", pod=~"elasticjob-[0-9a-z]+-[0-9a-z]+"'
    base = "https://git.example/blob/main"
    (deployment,) = of_kind(helm, {"nameOverride": "trainer"}, "Deployment")
    theirs = ours.replace('"elasticjob-[', f'"{deployment["metadata"]["name"]}-[')
    for name, asked, selector in (("trainer", "", theirs), ("", 'job=~"a|b", x="y"', 'job=~"a|b", x="y"')):
        rule = {"selector": asked, "enabled": True, "runbookUrl": base}
        (made,) = of_kind(helm, {"nameOverride": name, "metrics": {"prometheusRule": rule}}, "PrometheusRule")
        expected = file.replace(ours, selector).replace("runbook_url: docs/", f"runbook_url: {base}/docs/")
        assert made["spec"] == yaml.safe_load(expected)
        assert ours not in str(made["spec"])
        assert "{{ $labels.job_name }}" in str(made["spec"]), "braces are Prometheus's own"


def test_the_dashboard_is_left_out_unless_it_is_asked_for(helm: Helm) -> None:
    assert not of_kind(helm, {}, "ConfigMap")
    assert not of_kind(helm, {"metrics": {"enabled": False, "dashboard": {"enabled": True}}}, "ConfigMap")


def test_the_dashboard_is_that_of_the_file_and_links_to_the_runbooks(helm: Helm) -> None:
    file = (helm.chart / "files" / "dashboard.json").read_text()
    (made,) = of_kind(helm, {"metrics": {"dashboard": {"enabled": True}}}, "ConfigMap")
    assert made["metadata"]["namespace"] == NAMESPACE
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1", "Grafana's sidecar looks for it"
    assert made["data"] == {"elasticjob.json": file}
    assert "{{account}}" in file, "braces are Grafana's own"
    asked = {"prometheusRule": {"runbookUrl": 'https://docs.example/a"b/'}, "dashboard": {"enabled": True}}
    (made,) = of_kind(helm, {"metrics": asked}, "ConfigMap")
    shown = json.loads(made["data"]["elasticjob.json"])
    (runbooks,) = (one for one in shown["templating"]["list"] if one["name"] == "runbooks")
    assert runbooks["query"] == runbooks["current"]["value"] == 'https://docs.example/a"b'
    assert RUNBOOKS_AT not in str(shown)


def test_the_dashboard_may_have_a_place_and_labels_of_its_own(helm: Helm) -> None:
    asked = {
        "enabled": True,
        "namespace": "monitoring",
        "labels": {"grafana_dashboard": None, "example.com/dashboards": "main"},
        "annotations": {"grafana_folder": "Training"},
    }
    values = {"commonLabels": {"example.com/owner": "platform"}, "metrics": {"dashboard": asked}}
    (made,) = of_kind(helm, values, "ConfigMap")
    assert made["metadata"]["namespace"] == "monitoring"
    assert made["metadata"]["annotations"] == {"grafana_folder": "Training"}
    labels = made["metadata"]["labels"]
    assert labels["example.com/dashboards"] == "main"
    assert labels["example.com/owner"] == "platform"
    assert "grafana_dashboard" not in labels
