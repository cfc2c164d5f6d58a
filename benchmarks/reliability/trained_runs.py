"""Trainings that are killed, and checkpoints that are killed while they are written or damaged afterwards."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Figure, exactly, note
from benchmarks.reliability.chaos import Campaign, figures, run_seeds
from benchmarks.reliability.scale import Scale
from benchmarks.reliability.trainings import Training, compare, read_results
from finqa_cli.errors import DataError
from finqa_cli.runs import checkpoints


def kill_trainer(scale: Scale, folder: Path) -> list[Figure]:
    """R1: SIGKILL at a moment that the seed draws, then `finqa train --resume`."""
    seeds = range(scale.seed, scale.seed + scale.kills)
    return figures(run_seeds(seeds, folder, at_once=scale.at_once, kinds=("kill trainer",), number=1))


def kill_checkpoint_writes(scale: Scale, folder: Path) -> list[Figure]:
    """R3: see `checkpoint_kills`."""
    command = [sys.executable, "-m", "benchmarks.reliability.checkpoint_kills"]
    arguments = [str(scale.checkpoint_kills), str(scale.seed), str(folder)]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    counts: dict[str, int] = json.loads(done.stdout)
    return [
        exactly("loadable checkpoints", counts["loadable"], scale.checkpoint_kills),
        exactly("checkpoints lost beside the one that was being written", counts["lost"], 0),
        exactly("files left of unfinished ones after the next", counts["leftovers"], 0),
        note("killed before the new one was complete", counts.get("before", 0)),
    ]


def damage_checkpoints(scale: Scale, folder: Path) -> list[Figure]:
    """R4: every file of the newest checkpoint is damaged in four ways; then a run is resumed over a damaged one."""
    campaign = Campaign(folder)
    expected = campaign.expected(scale.seed)
    run = folder / f"undisturbed-{scale.seed}" / "run"
    newest = checkpoints.latest(run)
    assert newest is not None
    rng = random.Random(f"damage {scale.seed}")
    names = sorted(str(path.relative_to(newest.path)) for path in newest.path.rglob("*") if path.is_file())
    cases = [(name, way) for name in names for way in DAMAGES]
    detected = named = fell_back = 0
    for name, way in cases:
        copy = folder / "damaged"
        shutil.copytree(run / "checkpoints", copy / "checkpoints")
        damaged = copy / "checkpoints" / newest.path.name
        DAMAGES[way](damaged / name, rng)
        try:
            checkpoints.verified(damaged)
        except DataError as error:
            detected += 1
            named += damaged.name in error.message and (
                Path(name).name in error.message or name == "manifest.json" or way == "add a file"
            )
        older = checkpoints.latest(copy)
        fell_back += older is not None and older.iteration == newest.iteration - 1
        shutil.rmtree(copy)
    return [
        exactly("damages that are found", detected, len(cases), f"{len(names)} files, {', '.join(DAMAGES)}"),
        exactly("of these named by checkpoint and file", named, len(cases)),
        exactly("fallbacks to the checkpoint before", fell_back, len(cases)),
        _resume_over_damage(scale, folder, expected_of=campaign, newest=newest.path.name, name=rng.choice(names)),
        note("adapter files compared", len(expected.adapters)),
    ]


def _resume_over_damage(scale: Scale, folder: Path, *, expected_of: Campaign, newest: str, name: str) -> Figure:
    """A finished run whose last checkpoint is damaged is resumed: it repeats that iteration and ends the same."""
    expected = expected_of.expected(scale.seed)
    copy = folder / "resumed"
    shutil.copytree(folder / f"undisturbed-{scale.seed}", copy)
    training = Training(copy, seed=scale.seed, arguments=("--sandbox=local",), variables={})
    _flip_a_byte(training.run / "checkpoints" / newest / name, random.Random(scale.seed))
    status = training.start().wait()
    said = training.output().read_text(errors="replace")
    difference = compare(read_results(training.run), expected)
    wrong = [f"exit {status}"] if status else []
    wrong += [] if newest in said else [f"{newest} is not named"]
    wrong += [str(difference)] if any((difference.lost, difference.metrics, difference.adapters)) else []
    return exactly("differences of a run resumed over a damaged checkpoint", len(wrong), 0, "; ".join(wrong)[:300])


def _flip_a_byte(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _truncate(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def _delete(path: Path, _: random.Random) -> None:
    path.unlink()


def _add(path: Path, _: random.Random) -> None:
    path.with_name("stranger.bin").write_bytes(b"not in the manifest")


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "truncate": _truncate,
    "flip a bit": _flip_a_byte,
    "delete": _delete,
    "add a file": _add,
}
