"""Generator of the pictures of README.md, docs/images/launch.svg and docs/images/parity.png, from real runs.

python tools/pictures.py              both, in about two minutes on two cores
python tools/pictures.py launch       a launch in which a worker is killed and the job resumes
python tools/pictures.py parity       the report of `parity`; needs Chromium on the PATH
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
JOB = ROOT / "legacy_configs" / "digits_cnn_two_workers.yaml"
PROGRAM = [sys.executable, "-m", "estimator_pipeline"]
KILL_AT = 400
TIMEOUT = 300


def launch(folder: Path) -> list[str]:
    """Return the lines of a launch whose worker 1 is killed with SIGKILL after step KILL_AT."""
    options = ["--max-restarts", "1", "--set", "run.model_dir=runs/digits", "--set", "train.max_steps=1600"]
    process = subprocess.Popen(
        [*PROGRAM, "launch", str(JOB), *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    alarm = threading.Timer(TIMEOUT, process.terminate)
    alarm.start()
    lines, pid, killed = [], 0, False
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip().replace(f"{folder}/", ""))
            if match := re.search(r"worker:1 started, pid (\d+)", line):
                pid = int(match[1])
            step = re.search(r"(?:step|evaluated step) (\d+)", line)
            if step and int(step[1]) >= KILL_AT and not killed:
                killed = True
                os.kill(pid, signal.SIGKILL)
                lines.append(f"$ kill -9 {pid}")
        if process.wait(timeout=60) != 0 or not killed:
            raise SystemExit("\n".join(lines))
    finally:
        alarm.cancel()
        process.kill()
    return lines


def draw_launch() -> None:
    """Write docs/images/launch.svg, the output on a terminal."""
    with tempfile.TemporaryDirectory() as name:
        lines = launch(Path(name))
    console = Console(record=True, width=118, file=io.StringIO())
    console.print(Text("$ estimator-pipeline launch job.yaml --max-restarts 1", style="bold green"))
    for line in lines:
        style = "bold green" if line.startswith("$") else "bold red" if "killed" in line or "fail" in line else ""
        style = "bold" if line.startswith(("result", "done")) else style
        console.print(Text(line, style=style, overflow="ellipsis", no_wrap=True))
    svg = console.export_svg(title="estimator-pipeline", unique_id="launch")
    # Without web fonts the picture looks the same in a network without internet access.
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
    if "Fira Code" in svg:
        raise SystemExit("error: this version of rich embeds fonts in a different way")
    (IMAGES / "launch.svg").write_text(svg, encoding="utf-8")


def draw_parity() -> None:
    """Write docs/images/parity.png, the top of a report."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("error: no Chromium on the PATH\n  hint: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(JOB, folder / "job.yaml")
        seeds = ["--set", "run.seed=1", "--set", "input.seed=1"]
        command = [*PROGRAM, "parity", "job.yaml", "--steps", "100", "--report", "report", *seeds]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT, env=environ)
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *quiet),
                *(f"--user-data-dir={folder / 'profile'}", "--window-size=1000,1400"),
                *(f"--screenshot={IMAGES / 'parity.png'}", (folder / "report" / "report.html").as_uri()),
            ],
            check=True,
            timeout=60,
        )


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[1:] or ["launch", "parity"]
    for name, draw in (("launch", draw_launch), ("parity", draw_parity)):
        if name in chosen:
            draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
