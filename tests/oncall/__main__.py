"""Makes faults in devcluster and writes down what an engineer on call sees: ``make oncall``.

Each case is a file of what kubectl shows; the answers are in a file of their own, which the reader does not
get. See docs/internals/on-call.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from random import Random

from devcluster import crd
from devcluster.cluster import Cluster
from devcluster.wait import wait_for
from tests.e2e.job import ROOT, Operator
from tests.oncall.faults import BY_NAME, FAULTS, JOB, Case, Fault

COMMANDS = [
    "get ej -o wide",
    f"describe ej {JOB}",
    "get pods -o wide",
    "describe pods",
    "get events --sort-by=.metadata.creationTimestamp",
    "get quota,hpa,pdb,jobs",
    "get nodes",
]
"""What is looked at, each in the job's namespace."""
NODES = 4


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the cases and answers.json")
    parser.add_argument("--only", default="", help="names of faults, comma-separated; default: all")
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    options = parser.parse_args()
    chosen = [BY_NAME[name] for name in options.only.split(",") if name] or list(FAULTS)
    Random(options.seed).shuffle(chosen)
    shown = options.folder / "cases"
    shown.mkdir(parents=True, exist_ok=True)
    answers, wrong = {}, []
    with Cluster(nodes=NODES) as cluster:
        crd.install(cluster, ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml")
        for number, fault in enumerate(chosen, start=1):
            name = f"team-{number:02}"
            answers[name] = {"fault": fault.name, "cause": fault.cause}
            try:
                (shown / f"{name}.txt").write_text(play(cluster, fault, name, options.folder / "data" / name))
            except (AssertionError, TimeoutError, RuntimeError):
                wrong.append(fault.name)
                traceback.print_exc()
            print(f"{name}: {fault.name}", flush=True)
            (options.folder / "answers.json").write_text(json.dumps(answers, indent=1))
    if wrong:
        print(f"not made: {', '.join(wrong)}")
    return 1 if wrong else 0


def play(cluster: Cluster, fault: Fault, namespace: str, folder: Path) -> str:
    """Make one fault; returns what an engineer sees. Raises TimeoutError if it does not come to be."""
    cluster.kubectl("create", "namespace", namespace)
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    wait_for(lambda: cluster.api.is_ok(account), 60, "the namespace's account")
    case = Case(cluster, namespace, folder)
    operator = None
    if fault.operator:
        operator = case.operator = Operator(cluster, namespace, folder / "operator.log")
    try:
        fault.make(case)
        return "\n\n".join(f"$ kubectl {words}\n{_look(cluster, namespace, words)}" for words in COMMANDS)
    finally:
        for undo in reversed(case.undo):
            undo()
        cluster.kubectl("-n", namespace, "delete", "elasticjob", JOB, "--wait=false", check=False)
        if operator is not None:
            cluster.kubectl("-n", namespace, "wait", "ej", JOB, "--for=delete", "--timeout=30s", check=False)
            operator.stop()
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        cluster.kubectl("-n", namespace, "delete", "pods", "--all", "--force", check=False)


def _look(cluster: Cluster, namespace: str, words: str) -> str:
    done = cluster.kubectl("-n", namespace, *words.split(), check=False)
    return str(done.stdout + done.stderr).rstrip()


if __name__ == "__main__":
    sys.exit(main())
