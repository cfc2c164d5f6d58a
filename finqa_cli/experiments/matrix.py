"""From an experiment file and the environment to the cells of the matrix, each with its values. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from finqa_cli.errors import ConfigError
from finqa_cli.experiments.experiment_file import PLACES, ExperimentFile, Header, Preparation, Rates
from finqa_cli.experiments.formulas import FormulaError, Scalar, calculated
from finqa_cli.settings.layers import flatten
from finqa_cli.settings.settings_files import Document

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One place of the matrix.

    Attributes:
        name: As the file forms it.
        choices: Axis -> choice.
        variables: All of them, with the values that they have here.
        fixed: Those that a choice decides, so that the environment does not.
        settings: Dotted path -> value.
        evaluation: Dotted path -> value, in place of the setting when it is evaluated.
        rates: For estimates.
    """

    name: str
    choices: Mapping[str, str]
    variables: Mapping[str, Scalar]
    fixed: frozenset[str]
    settings: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    rates: Rates | None


def given_variables(file: ExperimentFile, environment: Mapping[str, str]) -> dict[str, Scalar]:
    """The variables of the file that the environment sets, read as their defaults are.

    Raises:
        ConfigError: A value cannot be read so.
    """
    given = {name: environment[name].strip() for name in file.variables if environment.get(name, "").strip()}
    return {name: _read(name, text, file.variables[name]) for name, text in given.items()}


def experiment_name(document: Document, file: ExperimentFile, given: Mapping[str, Scalar]) -> str:
    """The name of the whole.

    Raises:
        ConfigError: Its formula is wrong, or the result is no name of a folder.
    """
    name = str(_calculated(document, "experiment.name", file.experiment.name, {**file.variables, **given}))
    return _checked_name(document, "experiment.name", name)


def preparations(
    document: Document, file: ExperimentFile, given: Mapping[str, Scalar], run: str
) -> tuple[Preparation, ...]:
    """The commands before the first cell, with their arguments; `run` is the folder of the experiment.

    Raises:
        ConfigError: A formula is wrong.
    """
    names = {**file.variables, **given, **_places(document, run)}
    return tuple(
        Preparation(name=one.name, arguments=tuple(map(str, _calculated(document, "prepare", one.arguments, names))))
        for one in file.prepare
    )


def cells(document: Document, file: ExperimentFile, given: Mapping[str, Scalar], run: str) -> list[Cell]:
    """All cells, in the order of the file's axes; `run` is the folder of the experiment.

    Raises:
        ConfigError: A setting is unknown, a formula wrong, or two cells have one name.
    """
    known = {**given, **_places(document, run)}
    found = [_cell(document, file, known, dict(choices)) for choices in _choices(file)]
    names = [cell.name for cell in found]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"Several cells are called {repeated[0]!r} ({document.place('experiment.cell')}).",
            remedy="name every axis in experiment.cell, as {axis}",
        )
    return found


def _places(document: Document, run: str) -> dict[str, Scalar]:
    return dict(zip(PLACES, (run, str(document.file.resolve().parent)), strict=True))


def _choices(file: ExperimentFile) -> Iterator[tuple[tuple[str, str], ...]]:
    return itertools.product(*([(axis, choice) for choice in choices] for axis, choices in file.axes.items()))


def _cell(document: Document, file: ExperimentFile, given: Mapping[str, Scalar], choices: dict[str, str]) -> Cell:
    fixed: dict[str, Scalar] = {}
    own: list[tuple[str, dict[str, Any]]] = []
    for axis, choice in choices.items():
        body = file.axes[axis][choice]
        fixed |= {name: value for name, value in body.items() if name.isupper()}
        own.append((f"axes.{axis}.{choice}", {name: value for name, value in body.items() if not name.isupper()}))
    variables = {**file.variables, **given, **fixed}
    settings: dict[str, Any] = {}
    for place, tree in (("settings", file.settings), *own):
        settings |= _flat(document, place, tree, variables)
    header: Header = file.experiment
    try:
        name = header.cell.format(**choices)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"experiment.cell ({document.place('experiment.cell')}): there is no axis {error}.",
            remedy=f"name axes: {', '.join(f'{{{axis}}}' for axis in choices)}",
        ) from error
    return Cell(
        name=_checked_name(document, "experiment.cell", name),
        choices=choices,
        variables=variables,
        fixed=frozenset(fixed),
        settings=settings,
        evaluation=_flat(document, "evaluation", file.evaluation, variables),
        rates=_rates(document, file.rates, variables) if file.rates else None,
    )


def _rates(document: Document, rates: Rates, names: Mapping[str, Scalar]) -> Rates:
    try:
        return Rates.model_validate(_calculated(document, "rates", rates.model_dump(), names))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in ("rates", *first["loc"]))
        raise ConfigError(
            f"{path} ({document.place(path)}): {first['msg']}.", remedy=f"mend {document.name} there"
        ) from error


def _flat(document: Document, place: str, tree: Mapping[str, Any], names: Mapping[str, Scalar]) -> dict[str, Any]:
    layer = flatten(_calculated(document, place, tree, names), lambda path: document.place(f"{place}.{path}"))
    return {path: value.raw for path, value in layer.items()}


def _calculated(document: Document, place: str, value: Any, names: Mapping[str, Scalar]) -> Any:
    try:
        return calculated(value, names)
    except FormulaError as error:
        raise ConfigError(f"{place} ({document.place(place)}): {error}.", remedy=f"mend {document.name}") from error


def _checked_name(document: Document, place: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{place} ({document.place(place)}): {name!r} cannot name a folder.",
            remedy="letters, digits, `_`, `.` and `-`",
        )
    return name


def _read(name: str, text: str, default: Scalar) -> Scalar:
    """A text of the environment as a value of the default's type."""
    try:
        if isinstance(default, bool):
            return _WORDS[text.lower()]
        if isinstance(default, int):
            return int(text)
        return float(text) if isinstance(default, float) else text
    except (KeyError, ValueError) as error:
        kind = (
            "true or false"
            if isinstance(default, bool)
            else "a whole number"
            if isinstance(default, int)
            else "a number"
        )
        raise ConfigError(f"{name}={text!r} (environment {name}): must be {kind}.", remedy=f"unset {name}") from error
