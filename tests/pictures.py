"""Pictures of the command line for the documents, of one job that has lost a node and gone on.

    python -m tests.pictures            # half an hour: trains, kills a node, draws all of them
    python -m tests.pictures --again    # the report again, from what that run has left in docs/pictures

examples/digits trains on devcluster with three pods and a spare, held back so that two cores do. The node of
rank 0 loses its power, and comes back later. When little of the job's time was lost, compared with all of it,
`elasticjob report` draws it, and what `elasticjob top` shows on a terminal is drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from devcluster import crd
from devcluster.cluster import Cluster
from elasticjob_client import Jobs
from elasticjob_client.cli.page import page
from elasticjob_client.explain.report import report
from elasticjob_client.pods import Pod
from elasticjob_client.resource import ElasticJob
from examples.demo import CHECKPOINTS, CRD, JOB, ROOT, OurCluster, Story, operator, say
from tests.screens.browser import opened
from tests.terminal import COLUMNS, Terminal, terminal

FOLDER = ROOT / "docs" / "pictures"
RUN = FOLDER / "lost-node.json"
"""The job and its pods at the end of the run, as the API server has them, and when that was."""
PROGRAM = Path(sys.executable).with_name("elasticjob")
PACED = ROOT / "tests" / "chaos" / "paced_train.py"
STEP_SECONDS = 0.2
BEFORE_SECONDS, AWAY_SECONDS = 600, 240
"""Of training before the loss; until the node is back."""
PERCENT = 96
"""Goodput that convinces."""
_FONT_FROM_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.pictures", description=__doc__)
    parser.add_argument("--again", action="store_true", help="draw what the last run has left")
    FOLDER.mkdir(exist_ok=True)
    if not parser.parse_args().again:
        lose_a_node()
    draw_report(json.loads(RUN.read_text()), FOLDER / "report.png")


def lose_a_node() -> None:
    """The run. Leaves `RUN`, and draws top."""
    shutil.rmtree(CHECKPOINTS, ignore_errors=True)
    CHECKPOINTS.mkdir()
    (CHECKPOINTS / "pace").write_text(str(STEP_SECONDS))
    with Cluster(nodes=4) as cluster:
        crd.install(cluster, CRD)
        with operator(cluster.kubeconfig):
            cluster.kubectl(
                "apply",
                "-f",
                "-",
                input=json.dumps({"kind": "List", "apiVersion": "v1", "items": job(cluster)}),
            )
            stage = OurCluster(cluster)
            story = Story(stage)
            wait(story, lambda: stage.steps_done() >= 10, "training")
            wait(story, after(BEFORE_SECONDS), "some training")
            node = node_of(cluster, story.rank_0())
            say(f"{node} loses its power")
            cluster.nodes.kill_node(node)
            wait(story, lambda: established(story, 2), "the next round")
            wait(story, after(AWAY_SECONDS), "training without the node")
            cluster.nodes.start_node(node)
            wait(story, lambda: goodput(story) >= PERCENT, f"a goodput of {PERCENT} %")
            environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
            RUN.write_text(json.dumps(left(cluster), indent=1) + "\n")
            with terminal([str(PROGRAM), "top", JOB, "--interval", "0.5"], environment) as shown:
                shown.wait(lambda text: "q: quit" in text)
                draw(shown, FOLDER / "top.svg", f"elasticjob top {JOB}")


def job(cluster: Cluster) -> list[dict[str, Any]]:
    """What examples/digits-devcluster applies, with a spare, warm workers, and a node for each pod."""
    made = cluster.kubectl("kustomize", str(ROOT / "examples" / OurCluster.example)).stdout
    found: list[dict[str, Any]] = list(yaml.safe_load_all(made))
    for one in found:
        if one["kind"] == "ElasticJob":
            spec = one["spec"]
            spec |= {"replicas": 3, "minReplicas": 2, "spares": 1, "warmWorkers": {}}
            pod = spec["template"]["spec"]
            apart = {
                "labelSelector": {"matchLabels": {"elasticjob.dev/job-name": JOB}},
                "topologyKey": "kubernetes.io/hostname",
            }
            pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
            (container,) = pod["containers"]
            container["command"] = ["torchrun", str(PACED), str(CHECKPOINTS / "pace")]
            container["args"] = ["--checkpoint-dir=/checkpoints", "--step-log=/checkpoints/steps.jsonl"]
            container["args"] += ["--epochs=100000", "--width=64", "--depth=2", "--log-every=1000"]
            container["env"] += [{"name": "OMP_NUM_THREADS", "value": "1"}]
    return found


def after(seconds: float) -> Any:
    """Whether this time is over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def node_of(cluster: Cluster, pod: str) -> str:
    """The node of a pod."""
    return cluster.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}").stdout


def established(story: Story, number: int) -> bool:
    """Whether this round trains."""
    rounds = story.status.get("roundHistory", ())
    return any(one["number"] == number and "firstStep" in one for one in rounds)


def goodput(story: Story) -> int:
    """In percent of the time so far."""
    return int(story.status.get("progress", {}).get("goodputPercent", 0))


def wait(story: Story, until: Any, what: str) -> None:
    """Look each second, and tell what the status says. Raises Failure if the job fails."""
    story.follow(until, what, seconds=7200.0, interval=1.0)


def left(cluster: Cluster) -> dict[str, Any]:
    """What a report is drawn of, without what is of this machine."""
    found = {
        "now": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "job": json.loads(cluster.kubectl("get", "ej", JOB, "-o", "json").stdout),
        "pods": [msgspec.to_builtins(pod) for pod in Jobs(kubeconfig=str(cluster.kubeconfig)).pods(JOB)],
    }
    found["job"]["spec"].pop("template")
    found["job"]["metadata"].pop("managedFields", None)
    found["job"]["metadata"].pop("annotations", None)
    return found


def draw_report(run: dict[str, Any], target: Path) -> None:
    """The page that `elasticjob report digits` would have written then, as a browser shows it."""
    pods = [msgspec.convert(pod, Pod) for pod in run["pods"]]
    found = report(msgspec.convert(run["job"], ElasticJob), pods, datetime.fromisoformat(run["now"]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.html")
        file.write_text(page(found))
        with opened(file, Path(folder, "browser.log")) as shown:
            target.write_bytes(shown.png())
    say(f"drew {target.name}")


def draw(shown: Terminal, target: Path, title: str) -> None:
    """What stands on the screen, as SVG without fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    lines = [_line(shown, number) for number in range(shown.screen.lines)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    for line in lines:
        console.print(line, no_wrap=True)
    drawn = _FONT_FROM_ELSEWHERE.sub("", console.export_svg(title=title, unique_id=target.stem))
    target.write_text(drawn)
    say(f"drew {target.name}")


def _line(shown: Terminal, number: int) -> Text:
    found = Text()
    row = shown.screen.buffer[number]
    for column in range(shown.screen.columns):
        one = row[column]
        found.append(one.data, Style(color=_colour(one.fg), bold=one.bold or None))
    found.rstrip()
    return found


def _colour(name: str) -> Color | None:
    """pyte has colours by name, or as six digits; its brown is what others call yellow."""
    if name == "default":
        return None
    return Color.parse("yellow" if name == "brown" else name if name.isalpha() else f"#{name}")


if __name__ == "__main__":
    main()
