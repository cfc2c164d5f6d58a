"""The specification of a pipeline: its settings and the source of its questions. A later call resumes with it."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from finqa_cli.algorithms.pairing import Rule
from finqa_cli.data.data_problems import Problem, ProblemError, as_data_error
from finqa_cli.data.finqa.finqa_rows import is_finqa
from finqa_cli.data.import_advice import advise_import
from finqa_cli.data.question_files.prepare import prepare
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.data.snapshots.compile import file_digest, manifest_digest
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_cli.errors import ConfigError, DataError, StorageError, UsageError
from finqa_cli.evaluation.compare.comparison import label_and_path
from finqa_cli.evaluation.compare.evaluated_runs import load_run
from finqa_cli.experiments.step_settings import check_options
from finqa_cli.extend import registry
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Loaded, Settings, from_public_dict, to_public_dict
from finqa_cli.settings.recorded_versions import with_grader
from finqa_cli.training.rl.rl_run import check_method
from finqa_cli.training.training_data import guard_training
from finqa_cli.types.splits import split_of_name
from finqa_cli.wiring.build import try_environment
from finqa_cli.wiring.policies import resolve

Method = Literal["ppo", "grpo", "rloo", "dpo"]
METHODS: tuple[str, ...] = get_args(Method)

Kind = Literal["embedded", "folder", "snapshot", "finqa", "rows", "generated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Source of the questions.

    Attributes:
        kind: For environments with snapshots: `embedded` (the embedded data set), `folder` (a data folder) or
            `snapshot` (a compiled one). For others: `finqa` (files of the original FinQA), `rows` (other question
            files) or `generated` (by the environment itself).
        path: The path that the user gave; empty if there is none.
        files: The question files at the path that are used.
        snapshot: Name of the compiled data.
        digest: `sha256:...` over the names and digests of all files at the path; empty without a path.
        by_company: Whether files of the original FinQA are split again, so that no company is in two splits.
    """

    kind: Kind
    path: str = ""
    files: tuple[str, ...] = ()
    snapshot: str = DEFAULT_NAME
    digest: str = ""
    by_company: bool = True

    def document(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {**asdict(self), "files": list(self.files)}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> DataSource:
        """Reads what `document` wrote."""
        return cls(**{**document, "files": tuple(document["files"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """What step 03 imitates: the scripted expert, or the gold solutions if the environment has them.

    Attributes:
        limit: Number of questions; 0: all of the training split.
        unquoted_years: Share of the expert's episodes that leave year columns unquoted.
        undivided_percentages: Share of its episodes that answer ratios in percent.
    """

    limit: int
    unquoted_years: float
    undivided_percentages: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """How step 04 samples: candidates per question, sampling parameters, and number of questions (`limit` 0: all)."""

    each: int
    temperature: float
    top_p: float
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """Everything that determines the steps of a pipeline.

    Attributes:
        method: Method that trains after imitation.
        imitation: Settings of the steps up to 03.
        training: Settings of all later steps.
        data: Source of the questions.
        init: Specification of a new model, as for `finqa sft --init`; empty: the model is `model.name`.
        demonstrations: What step 03 imitates.
        candidates: What step 04 samples.
        pair_rule: Rule by which step 08 pairs candidates; no effect for methods without pairs.
        compare_with: Further runs or pipelines that step 11 compares.
        final_test: File of a test split on which both policies are evaluated at the end, in addition to the held-out
            questions of `data`; or None.
        plots: Whether the comparison draws plots.
    """

    method: Method
    imitation: Settings
    training: Settings
    data: DataSource
    init: str
    demonstrations: Demonstrations
    candidates: Candidates
    pair_rule: Rule
    compare_with: tuple[str, ...]
    final_test: DataSource | None
    plots: bool

    def document(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {
            "method": self.method,
            "init": self.init,
            "data": self.data.document(),
            "demonstrations": asdict(self.demonstrations),
            "candidates": asdict(self.candidates),
            "pair_rule": self.pair_rule,
            "compare_with": list(self.compare_with),
            "final_test": None if self.final_test is None else self.final_test.document(),
            "plots": self.plots,
            "imitation": to_public_dict(self.imitation),
            "training": to_public_dict(self.training),
        }


def read_spec(document: Mapping[str, Any]) -> PipelineSpec:
    """Reads the specification that `PipelineSpec.document` wrote.

    Raises:
        DataError: The document is damaged.
        ConfigError: A setting is unknown in this version.
    """
    try:
        return PipelineSpec(
            method=document["method"],
            imitation=from_public_dict(with_grader(document["imitation"])),
            training=from_public_dict(with_grader(document["training"])),
            data=DataSource.read(document["data"]),
            init=document["init"],
            demonstrations=Demonstrations(**document["demonstrations"]),
            candidates=Candidates(**document["candidates"]),
            pair_rule=document["pair_rule"],
            compare_with=tuple(document["compare_with"]),
            final_test=None if document["final_test"] is None else DataSource.read(document["final_test"]),
            plots=document["plots"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"The parameters of the pipeline cannot be read ({error!r}).") from error


def check_spec(spec: PipelineSpec) -> None:
    """Checks everything that later steps need and that must exist already.

    Raises:
        ConfigError: A component or an option is unknown, the method does not fit the settings, or the model or its
            specification does not exist.
        DataError: A run to compare with cannot be compared, or the run of the first policy is damaged; or the data is
            malformed, or a later step would refuse it because its splits overlap.
        UsageError: A run to compare with lacks its label or its folder.
    """
    for settings in (spec.imitation, spec.training):
        check_options(settings)
    if spec.method != "dpo":
        check_method(spec.training)
    if not spec.init:
        resolve(spec.imitation.model.name)
    elif not Path(spec.init).is_file():
        raise ConfigError(f"There is no model specification at {spec.init}.", remedy="finqa config list")
    for named in spec.compare_with:
        load_run(label_and_path(named)[1])
    _check_data(spec)


def _check_data(spec: PipelineSpec) -> None:
    """Checks the data as the steps do that check, divide and train on it."""
    data, settings = spec.data, spec.training
    match data.kind:
        case "embedded":
            return  # its splits share nothing, as its tests show
        case "finqa":
            prepare([Path(file) for file in data.files], split_by="company" if data.by_company else "file")
        case "folder":
            with tempfile.TemporaryDirectory() as home:
                environment = try_environment(settings, Path(data.path), Path(home))
                guard_training(settings, NullReporter(), environment)
        case _:
            guard_training(settings, NullReporter())


def with_defaults(loaded: Loaded, defaults: Mapping[str, Any]) -> Settings:
    """Returns settings with defaults, by dotted path, for those that no file, variable or flag sets."""
    document = loaded.settings.model_dump()
    for path, value in defaults.items():
        if loaded.origins.get(path, "default").partition(" ")[0] in ("default", "profile", "auto"):
            *parents, leaf = path.split(".")
            node = document
            for parent in parents:
                node = node[parent]
            node[leaf] = value
    document["run"]["placed"] = [path for path in document["run"]["placed"] if path not in defaults]
    return Settings.model_validate(document)


def find_data(settings: Settings, *, named: bool) -> DataSource:
    """Finds the data that the settings name.

    Args:
        settings: Environment and data.
        named: Whether the user set `data.snapshot`.

    Raises:
        DataError: There is nothing at the path, or nothing readable.
        ConfigError: There is no such environment.
    """
    path, snapshot = settings.data.path, settings.data.snapshot
    if not registry().find("environment", settings.environment.name).snapshotless:
        if path is None:
            own = named or LocalSnapshots(settings.data.home).holds_other_data()
            return DataSource(kind="snapshot" if own else "embedded", snapshot=snapshot)
        if not path.is_dir():
            command = advise_import(path)
            remedy = f"--environment finqa-text, or {command}" if "finqa-json" in command else command
            if not path.exists():
                remedy = f"name a folder that exists; {command} lists the commands that write one"
            raise DataError(f"There is no data folder at {path}.", remedy=remedy)
        digest = _digest(path, _files(path))
        return DataSource(
            kind="folder", path=str(path), snapshot=snapshot if named else _name(path, digest), digest=digest
        )
    if path is None:
        return DataSource(kind="generated")
    files = _question_files(path)
    digest = _digest(path, files)
    if not _is_finqa(files[0]):
        return DataSource(kind="rows", path=str(path), files=tuple(map(str, files)), digest=digest)
    by_company = not settings.data.allow_overlap
    used = [file for file in files if split_of_name(file) != "test"] if by_company else files
    return DataSource(
        kind="finqa", path=str(path), files=tuple(map(str, used or files)), digest=digest, by_company=by_company
    )


def find_final_test(settings: Settings, path: Path) -> DataSource:
    """Finds the file of a test split.

    Raises:
        UsageError: The environment reads no question files, or the name of the file does not name the split test.
        DataError: There is no such file, or it cannot be read.
        ConfigError: There is no such environment.
    """
    name = settings.environment.name
    if not registry().find("environment", name).snapshotless:
        raise UsageError(
            f"The environment {name} cannot read question files, so --final-test is not possible.",
            remedy="--environment finqa-text",
        )
    if not path.is_file():
        raise DataError(f"There is no file {path}.", remedy="give --final-test a question file, such as test.json")
    if split_of_name(path) != "test":
        named = path.with_stem(f"{path.stem}_test")
        raise UsageError(
            f"The name of {path} does not contain the word test, and the split of a file is determined by its name.",
            remedy=f"mv {shlex.quote(str(path))} {shlex.quote(str(named))}, if it is a test split, and use "
            "--final-test with that name",
        )
    try_environment(settings, path, path.parent)
    return DataSource(kind="rows", path=str(path), files=(str(path),), digest=_digest(path, [path]))


def check_unchanged(data: DataSource) -> None:
    """Checks that the files have not changed since the pipeline began.

    Raises:
        ConfigError: The files changed.
        DataError: There are no files any more.
    """
    if not data.digest:
        return
    path = Path(data.path)
    if _digest(path, _files(path) if data.kind == "folder" else _question_files(path)) != data.digest:
        raise ConfigError(
            f"The data at {path} has changed since the pipeline was started.",
            remedy="restore the original data, or start a new run with another --output",
        )


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _question_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(file for file in path.glob("*") if file.suffix in (".json", ".jsonl")) if path.is_dir() else []
    used = [file for file in found if split_of_name(file)]
    if not used:
        remedy = "--data with a question file, or a folder with train, dev and test (.json, .jsonl)"
        raise DataError(f"There are no question files at {path}.", remedy=remedy)
    return used


def _is_finqa(file: Path) -> bool:
    try:
        first = next(iter(read_rows(file)), None)
    except ProblemError as error:
        raise as_data_error([error.problem], remedy="correct it, or name another file") from error
    if first is None:
        raise DataError(f"{file} has no rows.", remedy="give --data another file")
    return not isinstance(first, Problem) and is_finqa(first[1])


def _digest(path: Path, files: Sequence[Path]) -> str:
    try:
        return manifest_digest({str(file.relative_to(path)): file_digest(file) for file in files})
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error


def _name(path: Path, digest: str) -> str:
    """Returns a name for the snapshot of a folder, which depends on its name and its data."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", path.resolve().name).strip("-")[:40] or "data"
    return f"{words}-{digest.removeprefix('sha256:')[:12]}"
