"""Pictures of the command line for the documents: `python -m tests.pictures` (3 minutes).

examples/digits trains on devcluster with two pods, loses rank 0 and grows to three. What `elasticjob top`
shows on a terminal is drawn. Chromium takes the picture of `elasticjob report` if it is installed
(`apt-get install chromium`); otherwise that one is left as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from devcluster import crd
from devcluster.cluster import Cluster
from examples.demo import CHECKPOINTS, CRD, JOB, ROOT, OurCluster, Story, operator, say
from tests.screens.browser import program
from tests.terminal import COLUMNS, Terminal, terminal

FOLDER = ROOT / "docs" / "pictures"
PROGRAM = Path(sys.executable).with_name("elasticjob")
_FONT_FROM_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    """Entry point."""
    shutil.rmtree(CHECKPOINTS, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    with Cluster(nodes=3) as cluster:
        stage = OurCluster(cluster)
        crd.install(cluster, CRD)
        with operator(cluster.kubeconfig):
            cluster.kubectl("apply", "-k", str(ROOT / "examples" / stage.example))
            story = Story(stage)
            story.follow(lambda: stage.steps_done() >= 100, "100 steps of training")
            story.drill()
            before = stage.steps_done()
            story.follow(lambda: stage.steps_done() >= before + 200, "200 steps more")
            cluster.kubectl("scale", f"ej/{JOB}", "--replicas=3")
            grown = {"members": 3, "phase": "Active"}
            story.follow(lambda: grown.items() <= story.status["currentRound"].items(), "a round of three")
            before = stage.steps_done()
            story.follow(lambda: stage.steps_done() >= before + 100, "100 steps of three")
            draw_all({**os.environ, "KUBECONFIG": str(cluster.kubeconfig)})


def draw_all(environment: dict[str, str]) -> None:
    """All pictures, of the job as it is now."""
    with terminal([str(PROGRAM), "top", JOB, "--interval", "0.5"], environment) as shown:
        shown.wait(lambda text: "q: quit" in text)
        draw(shown, FOLDER / "top.svg", f"elasticjob top {JOB}")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        subprocess.run([PROGRAM, "report", JOB, "--file", str(page)], env=environment, check=True)
        photograph(page, FOLDER / "report.png")


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


def photograph(page: Path, target: Path) -> None:
    """The page as a browser shows it."""
    try:
        browser = program()
    except FileNotFoundError as error:
        say(f"{target.name} is left as it is: {error}")
        return
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    subprocess.run(
        [*command, "--window-size=1150,1180", f"--screenshot={target}", page.as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    say(f"took {target.name}")


if __name__ == "__main__":
    main()
