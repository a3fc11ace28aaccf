"""`python -m benchmarks.pictures`: the pictures of the results again, from the figures that are there."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import breakdown_plot, plot, scale_plot
from benchmarks.breakdown import Breakdown
from benchmarks.results import Results
from benchmarks.scale_results import Samples

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: %(default)s")
    draw(parser.parse_args().out)


def draw(out: Path) -> None:
    """Write all of them into a folder."""
    plot.plot(Results.read(RESULTS / "results.json"), out / "plot.png")
    scale_plot.plot(Samples.read(RESULTS / "scale.json"), out / "scale.png")
    for name in ("breakdown", "breakdown-without-optimizer"):
        breakdown_plot.plot(Breakdown.read(RESULTS / f"{name}.json"), out / f"{name}.png")


if __name__ == "__main__":
    main()
