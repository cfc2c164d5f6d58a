"""Reads an experiment file: variables, base settings, the axes of the matrix, and the questions it is to answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from finqa_cli.errors import ConfigError
from finqa_cli.settings.settings_files import FORMATS, Document, read_document, shipped

Formula = str
"""A text that begins with `=`; see `experiment_formulas`."""

PLACES = ("RUN", "HERE")
"""In formulas, the folder of the experiment and that of the experiment file."""

_NAME = r"^[A-Za-z][A-Za-z0-9_.-]*$"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Header(_Table):
    """The table `[experiment]`.

    Attributes:
        name: Of the experiment, and of its folder below ./outputs.
        cell: Name of a cell, with `{axis}` for the choice on each axis.
        config: Settings files below the file's own settings, as `--config` takes them.
        compare_within: Axis whose choices are not compared with each other, because their questions are others.
        seeds: Every cell is trained once with each.
        reference: What is known about time and cost from elsewhere, in words.
    """

    name: str = Field(min_length=1)
    cell: str = Field(min_length=1)
    config: tuple[str, ...] = ()
    compare_within: str = ""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    reference: str = ""


class Preparation(_Table):
    """A finqa command that is run before the first cell, such as one that makes the policy all cells begin with.

    Attributes:
        name: Of its folder, RUN/prepare/NAME, which it is given as `--run-dir`.
        arguments: After `finqa`; may be formulas.
    """

    name: str = Field(pattern=_NAME)
    arguments: tuple[str, ...] = Field(min_length=1)


class Question(_Table):
    """One research question.

    Attributes:
        name: In a few words.
        ask: The question.
        axis: Whose choices it compares, all other choices being equal.
        pairs: The first of each less the second.
        measures: What is compared, by their names in `[measures]`.
    """

    name: str = Field(min_length=1)
    ask: str = Field(min_length=1)
    axis: str
    pairs: tuple[tuple[str, str], ...] = Field(min_length=1)
    measures: tuple[str, ...] = Field(min_length=1)


class Measure(_Table):
    """What a question compares.

    Attributes:
        better: Which way is an improvement.
        of: `accuracy`, `reward`, `components.NAME` for the mean of a part of the reward, or else the dotted name of a
            figure of the environment's own.
    """

    better: Literal["higher", "lower"]
    of: str = Field(min_length=1)


class Rates(_Table):
    """What time and cost are estimated from; each may be a formula. Pairs are a low and a high estimate.

    Attributes:
        prompt_tokens: Per attempt.
        response_tokens: Per attempt.
        evaluated: Attempts of one evaluation.
        questions: Of the training split, as far as other values are calculated from their number; unset: of none. It
            and `evaluated` are then compared with the data.
        seconds_per_attempt: Wall time of training, for each attempt in it, on all GPUs.
        gpus: That a cell takes.
        gpu_hour_price: US dollars for one GPU and hour; unset: no cost is said.
    """

    prompt_tokens: float | Formula
    response_tokens: float | Formula
    evaluated: float | Formula
    questions: float | Formula | None = None
    seconds_per_attempt: tuple[float | Formula, float | Formula]
    gpus: float | Formula = 1.0
    gpu_hour_price: float | Formula | None = None


class ExperimentFile(_Table):
    """The whole file.

    Attributes:
        experiment: Its header.
        variables: Name in capitals -> default; an environment variable of that name replaces it.
        prepare: Commands before the first cell, in order.
        settings: Of all cells; may hold formulas.
        evaluation: Settings that are others when a cell is evaluated.
        axes: Axis -> choice -> variables (in capitals) and settings of the cells with that choice.
        measures: By name.
        questions: What the report answers.
        rates: For estimates; without them only attempts are counted.
    """

    experiment: Header
    variables: dict[str, bool | int | float | str] = {}
    prepare: tuple[Preparation, ...] = ()
    settings: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}
    axes: dict[str, dict[str, dict[str, Any]]] = Field(min_length=1)
    measures: dict[str, Measure] = {}
    questions: tuple[Question, ...] = ()
    rates: Rates | None = None


def read_experiment(reference: str) -> tuple[Document, ExperimentFile]:
    """A file, or one that ships with finqa by its name, such as `financial_qa`.

    Raises:
        ConfigError: There is none, or it is not as it should be; the message says where.
    """
    document = _find(reference)
    if "experiment" not in document.tree:
        raise ConfigError(
            f"{document.name} is no experiment: it has no table [experiment].",
            remedy=f"finqa train --config {reference}, if it holds settings",
        )
    try:
        file = ExperimentFile.model_validate(document.tree)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{path} ({document.place(path)}): {first['msg']}.", remedy=f"mend {document.name} there"
        ) from error
    _check(document, file)
    return document, file


def _find(reference: str) -> Document:
    path = Path(reference).expanduser()
    if path.suffix.lower() in FORMATS or path.is_file():
        return read_document(path)
    known = {name: file for name, file in shipped().items() if name.startswith("experiments/")}
    for name, file in known.items():
        if reference in (name, name.rpartition("/")[2]):
            return read_document(file, f"{name}.toml")
    names = ", ".join(
        name.rpartition("/")[2] for name, file in known.items() if "experiment" in read_document(file).tree
    )
    raise ConfigError(
        f"{reference!r} is neither a file nor the name of an experiment that ships with finqa ({names}).",
        remedy="finqa experiment run FILE.toml",
    )


def _check(document: Document, file: ExperimentFile) -> None:
    """Raises ConfigError where one part of the file speaks of another that is not there."""
    for name in file.variables:
        if not name.isupper() or name in PLACES:
            why = f"variables are named in capitals, and {' and '.join(PLACES)} are taken"
            raise _wrong(document, f"variables.{name}", why)
    for axis, choices in file.axes.items():
        for choice, given in choices.items():
            unknown = [name for name in given if name.isupper() and name not in file.variables]
            if unknown:
                raise _wrong(document, f"axes.{axis}.{choice}.{unknown[0]}", "there is no such variable")
    if (within := file.experiment.compare_within) and within not in file.axes:
        raise _wrong(document, "experiment.compare_within", f"there is no axis {within!r}")
    for question in file.questions:
        _check_question(document, file, question)


def _check_question(document: Document, file: ExperimentFile, question: Question) -> None:
    place = f"question {question.name!r}"
    if question.axis not in file.axes or question.axis == file.experiment.compare_within:
        raise _wrong(document, "questions", f"{place} compares along {question.axis!r}, which is no axis to compare on")
    choices: Mapping[str, Any] = file.axes[question.axis]
    for choice in (choice for pair in question.pairs for choice in pair):
        if choice not in choices:
            raise _wrong(document, "questions", f"{place}: axis {question.axis} has no choice {choice!r}")
    for measure in question.measures:
        if measure not in file.measures:
            raise _wrong(document, "questions", f"{place}: there is no measure {measure!r} in [measures]")


def _wrong(document: Document, path: str, why: str) -> ConfigError:
    return ConfigError(f"{path} ({document.place(path)}): {why}.", remedy=f"mend {document.name} there")
