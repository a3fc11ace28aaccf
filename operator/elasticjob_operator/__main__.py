"""Run the operator in this process until SIGTERM. Installed as the command ``elasticjob-operator``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any, cast

import kopf

from elasticjob_operator import app, logs
from elasticjob_operator.leadership.elector import identity
from elasticjob_operator.settings import (
    HANDLER_IMAGE,
    HANDLER_IMAGE_ENV,
    NOTICE_TAINTS,
    TOPOLOGY,
    BadSetting,
    Settings,
    from_environment,
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="elasticjob-operator", description=__doc__)
    parser.add_argument(
        "-n",
        "--namespace",
        action="append",
        default=[],
        help="serve this namespace; can be repeated (default: $ELASTICJOB_NAMESPACES, or all namespaces)",
    )
    parser.add_argument(
        "--health-probe-bind-address",
        metavar="HOST:PORT",
        help="serve /livez and /readyz at this address, e.g. 0.0.0.0:8080 (default: no probes)",
    )
    parser.add_argument(
        "--metrics-bind-address",
        metavar="HOST:PORT",
        help="serve /metrics at this address, or nowhere if it is `off` (default: with the probes)",
    )
    parser.add_argument(
        "--metrics-per-job",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="metrics of each job, with its namespace and name (default: yes)",
    )
    parser.add_argument(
        "--metrics-max-jobs",
        metavar="NUMBER",
        help="how many jobs have metrics of their own (default: 1000)",
    )
    parser.add_argument(
        "--metrics-token-file",
        metavar="FILE",
        help="answer /metrics only with the bearer token in this file, which is read again when it changes "
        "(default: to all)",
    )
    parser.add_argument(
        "--handler-image",
        metavar="IMAGE",
        help=f"image from which pods get the handler (default: ${HANDLER_IMAGE_ENV}, or {HANDLER_IMAGE})",
    )
    parser.add_argument(
        "--handler-image-pull-policy",
        metavar="POLICY",
        help="Always, IfNotPresent or Never (default: as Kubernetes decides by the tag)",
    )
    parser.add_argument(
        "--default-ttl-seconds-after-finished",
        metavar="SECONDS",
        help="delete finished jobs that set no ttlSecondsAfterFinished after this time (default: keep them)",
    )
    parser.add_argument(
        "--default-active-deadline-seconds",
        metavar="SECONDS",
        help="end jobs that set no activeDeadlineSeconds after this time (default: none)",
    )
    parser.add_argument(
        "--default-failure-policy",
        metavar="JSON",
        help='limits for jobs that set none, such as {"application": {"maxRestarts": 3}} (default: none)',
    )
    parser.add_argument(
        "--namespace-defaults",
        metavar="JSON",
        help='defaults for the jobs of one namespace, such as {"team-a": {"ttlSecondsAfterFinished": 3600, '
        '"failurePolicy": {"idleDeadlineSeconds": 600}}} (default: none)',
    )
    parser.add_argument(
        "--node-notice-taints",
        metavar="KEYS",
        help="keys of taints, with commas, that say that a node is about to go: rounds drain, and pods are "
        f"replaced; off: none (default: {','.join(NOTICE_TAINTS)})",
    )
    parser.add_argument(
        "--topology-keys",
        metavar="KEYS",
        help="labels of nodes, with commas, from coarse to fine, that say where these are in the network: "
        f"ranks follow them; off: ranks go by slot (default: {','.join(TOPOLOGY)})",
    )
    parser.add_argument(
        "--kueue",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="jobs with the label kueue.x-k8s.io/queue-name wait for Kueue to admit them (default: "
        "$ELASTICJOB_KUEUE, or no)",
    )
    parser.add_argument(
        "--gang-scheduling",
        action="append",
        default=[],
        metavar="KIND",
        help="jobs with this spec.gangScheduling have a PodGroup: Kubernetes, Coscheduling or Volcano; can "
        "be repeated (default: $ELASTICJOB_GANG_SCHEDULING, or none)",
    )
    flags = parser.add_argument_group(
        "leader election",
        "Needed when several operators serve the same namespaces. Each flag can also be set by an "
        "environment variable, such as ELASTICJOB_LEADER_ELECT_LEASE_DURATION. Durations are written as 12s, "
        "500ms or a number of seconds.",
    )
    flags.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="act only while this process leads (default: $ELASTICJOB_LEADER_ELECT, or no)",
    )
    for name, text in (
        ("resource-name", "name of the Lease (default: elasticjob-operator)"),
        ("resource-namespace", "namespace of the Lease (default: $POD_NAMESPACE, or the service account's)"),
        (
            "lease-duration",
            "how long others wait after the last renewal before one takes over (default: 12s)",
        ),
        ("renew-deadline", "how long the leading operator keeps acting after its last renewal (default: 8s)"),
        ("retry-period", "interval between renewals and between attempts (default: 2s)"),
    ):
        flags.add_argument(f"--leader-elect-{name}", metavar="VALUE", help=text)
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        help="debug (also requests, and kopf's own messages), info, warning or error (default: info)",
    )
    parser.add_argument(
        "--log-format", metavar="FORMAT", help="text, or json: an object in each line (default: text)"
    )
    parser.add_argument(
        "-v", "--verbose", dest="log_level", action="store_const", const="debug", help="--log-level=debug"
    )
    return parser.parse_args(arguments)


def choose(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings: flags, else the environment. Raises BadSetting."""
    flags = {name: value for name, value in vars(arguments).items() if name.startswith("leader_elect_")}
    for name in ("leader_elect", "metrics_per_job", "kueue"):
        value = getattr(arguments, name)
        flags[name] = None if value is None else str(value).lower()
    flags["metrics_bind_address"] = arguments.metrics_bind_address
    flags["metrics_token_file"] = arguments.metrics_token_file
    flags["metrics_max_jobs"] = arguments.metrics_max_jobs
    flags["health_probe_bind_address"] = arguments.health_probe_bind_address
    flags["gang_scheduling"] = ",".join(arguments.gang_scheduling)
    flags["namespaces"] = ",".join(arguments.namespace)
    flags["default_ttl_seconds_after_finished"] = arguments.default_ttl_seconds_after_finished
    flags["default_active_deadline_seconds"] = arguments.default_active_deadline_seconds
    flags["default_failure_policy"] = arguments.default_failure_policy
    flags["namespace_defaults"] = arguments.namespace_defaults
    flags["log_level"], flags["log_format"] = arguments.log_level, arguments.log_format
    flags["node_notice_taints"] = arguments.node_notice_taints
    flags["topology_keys"] = arguments.topology_keys
    flags["handler_image"] = arguments.handler_image
    flags["handler_image_pull_policy"] = arguments.handler_image_pull_policy
    return from_environment(environ, flags)


def main() -> None:
    """Entry point."""
    arguments = parse()
    try:
        settings = choose(arguments)
    except BadSetting as error:
        raise SystemExit(f"elasticjob-operator: {error}") from error
    logs.configure(settings.log)
    app.running.settings = settings
    # The signals are kopf's. A stop flag would cost 5 s at the end: kopf takes its waiter for a hung task.
    # Without an identity kopf asks for the user's name. An image's user has none, nor has an arbitrary one.
    kopf.run(
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        identity=cast(Any, identity()),
    )


if __name__ == "__main__":
    main()
