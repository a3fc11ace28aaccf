"""``python -m elasticjob_operator``: run the operator in this process until SIGTERM."""

from __future__ import annotations

import argparse
import logging

import kopf

from elasticjob_operator import app
from elasticjob_operator.settings import Settings, from_environment


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="elasticjob_operator", description=__doc__)
    parser.add_argument(
        "-n",
        "--namespace",
        action="append",
        default=[],
        help="serve this namespace; may be given several times; default: ELASTICJOB_NAMESPACES, or all",
    )
    parser.add_argument("--liveness", metavar="URL", help="serve the probe, e.g. http://0.0.0.0:8080/healthz")
    parser.add_argument("-v", "--verbose", action="store_true", help="log requests and kopf's own steps")
    return parser.parse_args(arguments)


def main() -> None:
    """Entry point."""
    arguments = parse()
    kopf.configure(verbose=arguments.verbose)
    if not arguments.verbose:
        for name in ("kopf", "aiohttp.access"):
            logging.getLogger(name).setLevel(logging.WARNING)
    settings = from_environment()
    if arguments.namespace:
        settings = Settings(namespaces=tuple(dict.fromkeys(arguments.namespace)))
    app.running.settings = settings
    # The signals are kopf's. A stop flag would cost 5 s at the end: kopf takes its waiter for a hung task.
    kopf.run(
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        liveness_endpoint=arguments.liveness,
    )


if __name__ == "__main__":
    main()
