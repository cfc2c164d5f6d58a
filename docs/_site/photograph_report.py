"""Photograph the report of a training run for the README: its overview, and one held-out episode.

    python docs/_site/photograph_report.py RUN [CONTROL]

writes `docs/assets/report.png` and `docs/assets/report-episode.png`, in Chromium (`FINQA_CHROMIUM`, or on the PATH).
The run is one of `make demo`. The episode is the first held-out one, by id, that was wrong before and is right after.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image

ASSETS = Path(__file__).parents[1] / "assets"
WIDTH = 1000
OVERVIEW_HEIGHT, EPISODE_HEIGHT = 1320, 1900
COLOURS = 96
"""Colours of a picture's palette: text stays sharp, and a file is below 150 kB."""


def chromium() -> str:
    """Return the path of a Chromium.

    Raises:
        SystemExit: None is installed.
    """
    names = (os.environ.get("FINQA_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit("no Chromium on the PATH: install one, or name it in FINQA_CHROMIUM")
    return found


def photograph(browser: str, address: str, height: int, target: Path) -> None:
    """Write a picture of a page; its scripts get five seconds of virtual time first."""
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "page.png"
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000")
        size = f"--window-size={WIDTH},{height}"
        command = [browser, *flags, f"--user-data-dir={folder}/profile", size, f"--screenshot={picture}", address]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with Image.open(picture) as image:
            image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


def corrected_episode(run: Path) -> str:
    """Return the id of the last evaluation's first episode whose question the first evaluation got wrong.

    Raises:
        SystemExit: No question became right.
    """
    lines = (run / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = [record for record in map(json.loads, lines) if record["phase"] == "eval"]
    first, last = (choose(record["iteration"] for record in held_out) for choose in (min, max))
    wrong = {record["task"]["id"] for record in held_out if record["iteration"] == first and not record["reward"]}
    ids = sorted(
        str(record["id"])
        for record in held_out
        if record["iteration"] == last and record["reward"] and record["task"]["id"] in wrong
    )
    if not ids:
        raise SystemExit(f"no held-out question of {run} became right")
    return ids[0]


def main(run: Path, control: str = "") -> None:
    """Write the report of a run and its control to a temporary file, and both pictures of it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        command = [sys.executable, "-m", "finqa_cli", "report", str(run), "--out", str(report)]
        command += ["--control", control] if control else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        browser = chromium()
        photograph(browser, report.as_uri(), OVERVIEW_HEIGHT, ASSETS / "report.png")
        episode = urlencode({"id": corrected_episode(run)})
        photograph(browser, f"{report.as_uri()}#/episode?{episode}", EPISODE_HEIGHT, ASSETS / "report-episode.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
