"""Renders recipes from templates; each value passes through a filter that quotes it for its place."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.launching.cluster_shape import KINDS, SIGNAL_SECONDS, Shape
from finqa_cli.launching.train_words import TrainWords

TEMPLATES = Path(__file__).parent / "templates"

FILES = {"slurm": "train.sbatch", "kuberay": "train.yaml", "skypilot": "train.sky.yaml", "ray": "cluster.yaml"}
"""Kind of recipe -> file name that the comments in the recipe use."""

VOLUME = "/runs"
"""Mount point of the volume that keeps the run folder."""

assert set(FILES) == set(KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The values that a recipe is rendered from.

    Attributes:
        kind: One of `KINDS`.
        shape: The machines.
        train: The words of the training command.
    """

    kind: str
    shape: Shape
    train: TrainWords

    @property
    def run(self) -> str:
        """The run folder on the cluster."""
        below = f"{VOLUME}/" if self.shape.volume else "runs/"
        return self.shape.run_dir or f"{below}{self.shape.name}"

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of all environment variables that the nodes need."""
        return tuple(dict.fromkeys((*self.shape.variables, *self.train.variables)))


def render(recipe: Recipe) -> str:
    """Return the text of a recipe."""
    import jinja2
    from markupsafe import Markup

    def quoted(value: Any) -> Any:
        """Raise for a text that passed through no filter, because it could break the syntax of the file."""
        if isinstance(value, (int, float, Markup, jinja2.Undefined)):
            return value
        raise TypeError(f"A template writes {value!r} without quoting it.")

    environment = jinja2.Environment(  # not HTML, so no autoescape: `quoted` ensures that each value is quoted
        loader=jinja2.FileSystemLoader(TEMPLATES),
        finalize=quoted,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "sh": lambda text: Markup(shlex.quote(text)),
        "yaml": lambda value: Markup(json.dumps(value)),  # JSON in ASCII is YAML
        "name": lambda text: Markup(text),  # of a form that `Shape` checks
    }
    words = recipe.train.words
    settings = [words[at + 1] for at in range(0, len(words), 2)]
    return environment.get_template(f"{recipe.kind}.j2").render(
        shape=recipe.shape,
        file=FILES[recipe.kind],
        run=recipe.run,
        given_run=recipe.shape.run_dir,
        settings=settings,
        variables=recipe.variables,
        minutes=round(60 * recipe.shape.hours),
        seconds=round(3600 * recipe.shape.hours),
        signal_s=SIGNAL_SECONDS,
        volume=VOLUME,
        command=_in_one_line(recipe),
    )


def _in_one_line(recipe: Recipe) -> str:
    """Return a shell command that starts the training, or resumes its run folder if that exists."""
    start = shlex.join(("finqa", "train", *recipe.train.words))
    return (
        f'run={shlex.quote(recipe.run)}; if [ -e "$run/run.json" ]; then finqa train --resume "$run"; '
        f'else {start} --run-dir "$run"; fi'
    )
