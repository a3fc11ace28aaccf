"""What the rows ask Prometheus: series of the pods of one release, and where runbooks are."""

from __future__ import annotations

from charts.grafana import BLUE, GREEN, ORANGE, RED, YELLOW, Query

RUNBOOKS_AT = "https://git.example/elasticjob/blob/main"
"""Where runbooks are by default: the chart puts in `metrics.prometheusRule.runbookUrl`."""
PODS = 'namespace="$namespace", pod=~"$operator-[0-9a-z]+-[0-9a-z]+"'
"""The pods of one release, by the labels of the scrape."""
JOB = f'{PODS}, job_namespace="$job_namespace", job_name="$job_name"'
FIRING = 'ALERTS{alertname=~"ElasticJob.+", alertstate="firing"}'

PROBLEM = ((GREEN, None), (RED, 1.0))
WARNING = ((GREEN, None), (ORANGE, 1.0))
PLAIN = ((BLUE, None),)
LEGEND_OF_ACCOUNTS = "{{account}}"


STATES = {
    "Training": GREEN,
    "Draining": "light-green",
    "Establishing": "light-blue",
    "FormingRound": YELLOW,
    "WaitingForPods": ORANGE,
    "WaitingForFencing": "purple",
    "New": "light-orange",
    "Suspended": "gray",
    "Queued": "light-gray",
    "Complete": BLUE,
    "Failed": RED,
    "Other": "dark-red",
}
"""A colour for each state of a job."""
TRAINS = 'state="Training"'
SHOULD_TRAIN = 'state=~"New|WaitingForPods|FormingRound|WaitingForFencing|Establishing"'
WAITS_FOR_FENCING = 'state="WaitingForFencing"'
NO_SUCCESS = 'code!~"2.."'


def of(metric: str, *matchers: str) -> str:
    """The series of this metric."""
    return f"{metric}{{{', '.join((PODS, *matchers))}}}"


def sum_of(metric: str, *matchers: str) -> str:
    return f"sum({of(metric, *matchers)})"


def per_second(metric: str, by: str = "", *matchers: str) -> str:
    grouped = f" by ({by}) " if by else ""
    return f"sum{grouped}(rate({of(metric, *matchers)}[$__rate_interval]))"


def of_job(metric: str) -> str:
    return f"{metric}{{{JOB}}}"


def counted(metric: str, by: str, legend: str) -> Query:
    """How often something happened, as bars; what has not happened has none."""
    return Query(f"sum by ({by}) (increase({of(metric)}[$__rate_interval])) > 0", legend)


def in_an_hour(metric: str) -> str:
    return f"sum(increase({of(metric)}[1h]))"


def quantiles(metric: str) -> tuple[Query, ...]:
    """The median and the 90th percentile of the hour before, by account."""
    every = f"sum by (le, account) (increase({of(f'{metric}_bucket')}[1h]))"
    return (
        Query(f"histogram_quantile(0.9, {every})", f"{LEGEND_OF_ACCOUNTS}: 9 of 10"),
        Query(f"histogram_quantile(0.5, {every})", f"{LEGEND_OF_ACCOUNTS}: half"),
    )


def quantile(quantile: float, metric: str, by: str = "") -> str:
    """A quantile of what happens all the time."""
    every = f"sum by (le{by}) (rate({of(f'{metric}_bucket')}[$__rate_interval]))"
    return f"histogram_quantile({quantile}, {every})"


def runbook(alert: str, page: str) -> tuple[str, str]:
    return f"Runbook of {alert}", f"${{runbooks}}/docs/operate/runbooks/{page}.md"


def goodput(over: str) -> str:
    lost, training, repeated = (
        f"sum(increase({of(f'elasticjob_{name}_seconds_total')}[{over}]))"
        for name in ("lost", "training", "repeated")
    )
    return f"1 - {lost} / ({training} - {repeated} + {lost})"


NO_LEADER = runbook("ElasticJobNoLeader", "no-leader")
WATCH_BLIND = runbook("ElasticJobWatchBlind", "watch-blind")
PASSES_LATE = runbook("ElasticJobPassesLate", "passes-late")
WRITES_FAIL = runbook("ElasticJobWritesFail", "writes-fail")
RESTARTS = runbook("ElasticJobRestartsBurnBudget", "restarts-burn-budget")
NO_PROGRESS = runbook("ElasticJobNoProgress", "no-progress")
NODE = runbook("ElasticJobNodeBreaksJobs", "node-breaks-jobs")
ZONE = runbook("ElasticJobZoneBreaksJobs", "zone-breaks-jobs")
GOODPUT = runbook("ElasticJobGoodputLow", "goodput-low")
FENCING = runbook("ElasticJobWaitingForFencing", "waiting-for-fencing")
