"""`python -m benchmarks.crossings`: how often the ring of ranks leaves a rack, by the order of ranks.

It computes, and starts nothing: jobs of 64 pods, one on each of 64 nodes in 8 racks. Which slot gets which
node is random, as with a scheduler that spreads pods. torchrun orders agents by the text of their host names
(`node-10` comes before `node-2`): such that follow racks, and others, as clouds give them.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator, Sequence

from elasticjob.rounds.ranks import Candidate, assign_ranks
from elasticjob.rounds.topology import crossings

RACKS = 8
PODS = 64
JOBS = 1000


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="default %(default)s")
    jobs = parser.parse_args().jobs
    print(
        f"| order of ranks, {PODS} pods in {RACKS} racks, {jobs} jobs | crossings: median | least to most |"
    )
    print("|---|---|---|")
    for name, found in measured(jobs).items():
        print(f"| {name} | {statistics.median(found):.0f} | {min(found)} to {max(found)} |")


def measured(jobs: int) -> dict[str, list[int]]:
    """The crossings of each job, by the order of ranks."""
    found: dict[str, list[int]] = {}
    for seed in range(jobs):
        for name, order in _orders(random.Random(seed)):
            found.setdefault(name, []).append(crossings([c.domains for c in order], 0))
    return found


def _orders(rng: random.Random) -> Iterator[tuple[str, Sequence[Candidate]]]:
    nodes = list(range(PODS))
    rng.shuffle(nodes)
    per_rack = PODS // RACKS
    pods = [
        Candidate(f"id-{slot}", f"node-{node}", slot, domains=(f"rack={node // per_rack}", f"host={node}"))
        for slot, node in enumerate(nodes)
    ]
    cloud = {pod.id: f"i-{rng.getrandbits(64):016x}" for pod in pods}
    yield "ElasticJob: by rack, then slot", assign_ranks(pods, PODS)
    yield "by slot", pods
    yield "torchrun: by host name, names follow racks", sorted(pods, key=lambda c: c.name)
    yield "torchrun: by host name, names of a cloud", sorted(pods, key=lambda c: cloud[c.id])


if __name__ == "__main__":
    main()
