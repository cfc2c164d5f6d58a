"""Experiment files: variables with formulas, base settings, axes, questions; and the cells of their matrix."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from finqa_cli.errors import ConfigError
from finqa_cli.settings.layers import flatten
from finqa_cli.settings.settings_files import FORMATS, Document, read_document, shipped

Scalar = bool | int | float | str

Formula = str
"""A text that begins with `=`: arithmetic over the file's variables; see `calculate`."""

PLACES = ("RUN", "HERE")
"""Variables of every formula: the folder of the experiment, and that of the experiment file."""

_NAME = r"^[A-Za-z][A-Za-z0-9_.-]*$"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Header(_Table):
    """The table `[experiment]`.

    Attributes:
        name: Name of the experiment, and of its folder below ./outputs.
        cell: Pattern of the names of cells, with `{axis}` for the choice on each axis.
        config: Settings files, as for `--config`; settings of the experiment file take precedence over them.
        compare_within: Axis whose choices are not compared with each other, because they have different questions.
        seeds: Every cell is trained once with each seed, except cells with a choice that has its own `seeds`.
        reference: Time and cost reported elsewhere, in words.
    """

    name: str = Field(min_length=1)
    cell: str = Field(min_length=1)
    config: tuple[str, ...] = ()
    compare_within: str = ""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    reference: str = ""


class Preparation(_Table):
    """A finqa command that runs before the first cell, for example to make the initial policy of all cells.

    Attributes:
        name: Name of its folder, RUN/prepare/NAME, which the command gets as `--run-dir`.
        arguments: Words after `finqa`; may be formulas.
    """

    name: str = Field(pattern=_NAME)
    arguments: tuple[str, ...] = Field(min_length=1)


class Question(_Table):
    """One research question.

    Attributes:
        name: Short name.
        ask: The question.
        axis: Axis whose choices are compared; all other choices are equal.
        pairs: Pairs of choices; the difference is first minus second.
        measures: Names in `[measures]` of the figures to compare.
    """

    name: str = Field(min_length=1)
    ask: str = Field(min_length=1)
    axis: str
    pairs: tuple[tuple[str, str], ...] = Field(min_length=1)
    measures: tuple[str, ...] = Field(min_length=1)


class Measure(_Table):
    """A figure that questions compare.

    Attributes:
        better: Direction of an improvement.
        of: `accuracy`, `reward`, `components.NAME` for the mean of a part of the reward, or the dotted name of a figure
            that the environment measures.
    """

    better: Literal["higher", "lower"]
    of: str = Field(min_length=1)


class Rates(_Table):
    """Rates for estimates of time and cost; each may be a formula. Pairs are a low and a high estimate.

    Attributes:
        prompt_tokens: Prompt tokens per attempt.
        response_tokens: Response tokens per attempt.
        evaluated: Number of attempts in one evaluation.
        questions: Number of questions in the training split, if other values depend on it. It and `evaluated` are then
            compared with the data.
        seconds_per_attempt: Wall time of training divided by its attempts, on all GPUs.
        gpus: GPUs of a cell.
        gpu_hour_price: US dollars for one GPU and hour; unset: no cost.
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
        experiment: The header.
        variables: Name in capitals -> default; an environment variable of that name replaces it.
        prepare: Commands before the first cell, in order.
        settings: Settings of all cells; may contain formulas.
        evaluation: Settings that differ when a cell is evaluated.
        axes: Axis -> choice -> variables (in capitals) and settings of the cells with that choice, and optionally
            `seeds`, which replace those of the header.
        measures: Measures by name.
        questions: Questions that the report answers.
        rates: Rates for estimates; without them only attempts are counted.
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
    """Reads an experiment file by its path, or one that ships with finqa by its name, such as `financial_qa`.

    Raises:
        ConfigError: There is no such file, or it is malformed; the message states where.
    """
    document = _find(reference)
    if "experiment" not in document.tree:
        raise ConfigError(
            f"{document.name} is not an experiment: it has no table [experiment].",
            remedy=f"finqa config show --config {reference} shows it, if it contains settings",
        )
    try:
        file = ExperimentFile.model_validate(document.tree)
    except ValidationError as error:
        raise _invalid(document, error) from error
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
        f"{reference!r} is neither a file nor the name of an included experiment ({names}).",
        remedy="finqa experiment run FILE.toml",
    )


def _check(document: Document, file: ExperimentFile) -> None:
    """Raises a ConfigError if a part of the file refers to another part that does not exist, or a name is wrong."""
    for name in file.variables:
        if not name.isupper() or name in PLACES:
            why = f"names of variables must be in capitals, and {' and '.join(PLACES)} are taken"
            raise _wrong(document, f"variables.{name}", why)
    for axis, choices in file.axes.items():
        for choice, given in choices.items():
            unknown = [name for name in given if name.isupper() and name not in file.variables]
            if unknown:
                raise _wrong(document, f"axes.{axis}.{choice}.{unknown[0]}", "there is no such variable")
    _check_seeds(document, "experiment.seeds", file.experiment.seeds)
    if (within := file.experiment.compare_within) and within not in file.axes:
        raise _wrong(document, "experiment.compare_within", f"there is no axis {within!r}")
    for question in file.questions:
        _check_question(document, file, question)


def _check_seeds(document: Document, place: str, seeds: Any) -> tuple[int, ...]:
    """Returns the seeds; raises a ConfigError if they are not a list of different natural numbers."""
    numbers = seeds if isinstance(seeds, list | tuple) else []
    if not numbers or any(type(seed) is not int or seed < 0 for seed in numbers) or len(set(numbers)) < len(numbers):
        raise _wrong(document, place, f"{seeds!r} is not a list of different natural numbers, such as [0, 1, 2]")
    return tuple(numbers)


def _check_question(document: Document, file: ExperimentFile, question: Question) -> None:
    place = f"question {question.name!r}"
    if question.axis not in file.axes or question.axis == file.experiment.compare_within:
        raise _wrong(
            document, "questions", f"{place} compares along {question.axis!r}, which is not an axis of the experiment"
        )
    choices: Mapping[str, Any] = file.axes[question.axis]
    for choice in (choice for pair in question.pairs for choice in pair):
        if choice not in choices:
            raise _wrong(document, "questions", f"{place}: axis {question.axis} has no choice {choice!r}")
    for measure in question.measures:
        if measure not in file.measures:
            raise _wrong(document, "questions", f"{place}: there is no measure {measure!r} in [measures]")


def _wrong(document: Document, path: str, why: str) -> ConfigError:
    return ConfigError(f"{path} ({document.place(path)}): {why}.", remedy=f"edit {document.name} there")


def _invalid(document: Document, error: ValidationError, *parents: str) -> ConfigError:
    first = error.errors()[0]
    return _wrong(document, ".".join(map(str, (*parents, *first["loc"]))), first["msg"])


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class FormulaError(Exception):
    """A formula that cannot be calculated; the message states why."""


def calculate_all(value: Any, names: Mapping[str, Scalar]) -> Any:
    """Replaces every formula in a value, also inside tables and lists, by its result.

    Raises:
        FormulaError: A formula is malformed, uses an unknown variable, or has no result.
    """
    if isinstance(value, Mapping):
        return {key: calculate_all(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [calculate_all(item, names) for item in value]
    return calculate(value, names) if isinstance(value, str) and value.startswith("=") else value


def calculate(formula: str, names: Mapping[str, Scalar]) -> Scalar:
    """Returns the result of one formula.

    It may use numbers, texts in quotes, variables, + - * / //, comparisons, and, or, not, `A if B else C`.

    Raises:
        FormulaError: The formula is malformed, uses an unknown variable, or has no result.
    """
    try:
        tree = ast.parse(formula.removeprefix("=").strip(), mode="eval")
        result: Scalar = _value(tree.body, names)
    except FormulaError as error:
        raise FormulaError(f"{formula!r}: {error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"{formula!r} is no formula") from error
    except (ArithmeticError, TypeError) as error:
        raise FormulaError(f"{formula!r} has no result: {error}") from error
    return result


def _value(node: ast.expr, names: Mapping[str, Scalar]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise FormulaError(f"there is no variable {name}")
            return names[name]
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _value(body if _value(test, names) else otherwise, names)
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, names) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, names) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.Compare(left=left, ops=[comparison], comparators=[right]) if type(comparison) in _COMPARISONS:
            return _COMPARISONS[type(comparison)](_value(left, names), _value(right, names))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _BINARY:
            return _combined(operation, _value(left, names), _value(right, names))
    raise FormulaError(f"{ast.unparse(node)!r} is not allowed in formulas")


def _combined(operation: ast.operator, left: Scalar, right: Scalar) -> Any:
    if (isinstance(left, str) or isinstance(right, str)) and not isinstance(operation, ast.Add):
        raise FormulaError("texts can only be joined with +")
    return _BINARY[type(operation)](left, right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the matrix.

    Attributes:
        name: Name, by the pattern of the file.
        choices: Axis -> choice.
        fixed: Variables that a choice sets; environment variables do not change them.
        settings: Dotted path -> value.
        evaluation: Dotted path -> value that replaces the setting in the evaluation.
        rates: Rates for estimates.
        seeds: Seeds of its trainings.
    """

    name: str
    choices: Mapping[str, str]
    fixed: frozenset[str]
    settings: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    rates: Rates | None
    seeds: tuple[int, ...]


def given_variables(file: ExperimentFile, environment: Mapping[str, str]) -> dict[str, Scalar]:
    """Returns the variables of the file that environment variables set, converted to the types of their defaults.

    Raises:
        ConfigError: A value cannot be converted.
    """
    given = {name: environment[name].strip() for name in file.variables if environment.get(name, "").strip()}
    return {name: _read(name, text, file.variables[name]) for name, text in given.items()}


def experiment_name(document: Document, file: ExperimentFile, given: Mapping[str, Scalar]) -> str:
    """Returns the name of the experiment.

    Raises:
        ConfigError: Its formula is wrong, or the result cannot name a folder.
    """
    name = str(_calculated(document, "experiment.name", file.experiment.name, {**file.variables, **given}))
    return _checked_name(document, "experiment.name", name)


def preparations(
    document: Document, file: ExperimentFile, given: Mapping[str, Scalar], run: str
) -> tuple[Preparation, ...]:
    """Returns the commands before the first cell, formulas calculated; `run` is the folder of the experiment.

    Raises:
        ConfigError: A formula is wrong.
    """
    names = {**file.variables, **given, **_places(document, run)}
    return tuple(
        Preparation(name=one.name, arguments=tuple(map(str, _calculated(document, "prepare", one.arguments, names))))
        for one in file.prepare
    )


def cells(document: Document, file: ExperimentFile, given: Mapping[str, Scalar], run: str) -> list[Cell]:
    """Returns all cells, in the order of the file's axes; `run` is the folder of the experiment.

    Raises:
        ConfigError: A setting is unknown, a formula wrong, or two cells have one name.
    """
    known = {**given, **_places(document, run)}
    combinations = itertools.product(*([(axis, choice) for choice in choices] for axis, choices in file.axes.items()))
    found = [_cell(document, file, known, dict(choices)) for choices in combinations]
    names = [cell.name for cell in found]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"Several cells are called {repeated[0]!r} ({document.place('experiment.cell')}).",
            remedy="name every axis in experiment.cell, as {axis}",
        )
    return found


def _places(document: Document, run: str) -> dict[str, Scalar]:
    return dict(zip(PLACES, (run, str(document.file.resolve().parent)), strict=True))


def _cell(document: Document, file: ExperimentFile, given: Mapping[str, Scalar], choices: dict[str, str]) -> Cell:
    fixed: dict[str, Scalar] = {}
    trees: dict[str, Mapping[str, Any]] = {"settings": file.settings}
    seeds: dict[str, tuple[int, ...]] = {}
    for axis, choice in choices.items():
        body = dict(file.axes[axis][choice])
        if "seeds" in body:
            place = f"axes.{axis}.{choice}.seeds"
            seeds[place] = _check_seeds(document, place, body.pop("seeds"))
        fixed |= {name: value for name, value in body.items() if name.isupper()}
        trees[f"axes.{axis}.{choice}"] = {name: value for name, value in body.items() if not name.isupper()}
    if len(set(seeds.values())) > 1:
        raise _wrong(document, list(seeds)[-1], f"{next(iter(seeds))} sets different seeds for the same cell")
    variables = {**file.variables, **given, **fixed}
    settings: dict[str, Any] = {}
    for place, tree in trees.items():
        settings |= _flat(document, place, tree, variables)
        if "train.seed" in settings:
            raise _wrong(document, f"{place}.train.seed", "write seeds = [0, 1, 2] under [experiment] instead")
    try:
        name = file.experiment.cell.format(**choices)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"experiment.cell ({document.place('experiment.cell')}): there is no axis {error}.",
            remedy=f"name axes: {', '.join(f'{{{axis}}}' for axis in choices)}",
        ) from error
    rates = None
    if file.rates is not None:
        try:
            rates = Rates.model_validate(_calculated(document, "rates", file.rates.model_dump(), variables))
        except ValidationError as error:
            raise _invalid(document, error, "rates") from error
    return Cell(
        name=_checked_name(document, "experiment.cell", name),
        choices=choices,
        fixed=frozenset(fixed),
        settings=settings,
        evaluation=_flat(document, "evaluation", file.evaluation, variables),
        rates=rates,
        seeds=next(iter(seeds.values()), file.experiment.seeds),
    )


def _flat(document: Document, place: str, tree: Mapping[str, Any], names: Mapping[str, Scalar]) -> dict[str, Any]:
    layer = flatten(_calculated(document, place, tree, names), lambda path: document.place(f"{place}.{path}"))
    return {path: value.raw for path, value in layer.items()}


def _calculated(document: Document, place: str, value: Any, names: Mapping[str, Scalar]) -> Any:
    try:
        return calculate_all(value, names)
    except FormulaError as error:
        raise _wrong(document, place, str(error)) from error


def _checked_name(document: Document, place: str, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ConfigError(
            f"{place} ({document.place(place)}): {name!r} cannot name a folder.",
            remedy="letters, digits, `_`, `.` and `-`",
        )
    return name


def _read(name: str, text: str, default: Scalar) -> Scalar:
    """Converts the text of an environment variable to the type of its default."""
    if isinstance(default, str):
        return text
    kind = (
        "true or false" if isinstance(default, bool) else "a whole number" if isinstance(default, int) else "a number"
    )
    try:
        if isinstance(default, bool):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        return type(default)(text)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{name}={text!r} (environment {name}): must be {kind}.", remedy=f"unset {name}") from error
