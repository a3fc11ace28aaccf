"""Where the programs begin. Slow imports wait until Ctrl-C does no harm."""

from __future__ import annotations

from elasticjob_client.cli.starting import begun, hold


def main() -> None:
    """``elasticjob``, and as a plugin ``kubectl ej``."""
    hold()
    from elasticjob_client.cli.main import main as run

    run()


def complete() -> None:
    """``kubectl_complete-ej``."""
    hold()
    from elasticjob_client.cli.main import complete as run

    begun()
    run()


if __name__ == "__main__":
    main()
