"""Where the questions of a pipeline come from, and the steps that check and prepare them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finqa_cli.data.data_problems import Problem, ProblemError, as_data_error
from finqa_cli.data.finqa.finqa_rows import is_finqa
from finqa_cli.data.generated.embedded import embedded_layout
from finqa_cli.data.openenv_layout.layout_reader import read_layout
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.data.snapshots.compile import compile_snapshot, file_digest, manifest_digest
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_cli.errors import ConfigError, DataError, StorageError
from finqa_cli.extend import registry
from finqa_cli.settings import Settings
from finqa_cli.types.splits import split_of_name

Kind = Literal["embedded", "folder", "snapshot", "finqa", "rows", "generated"]
_ENDINGS = (".json", ".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The questions.

    Attributes:
        kind: The embedded data set, a data folder, or a compiled snapshot, for environments that take snapshots; files
            of the original FinQA, other question files, or what the environment generates itself, for the others.
        path: As it was given; empty when none was.
        files: The question files at the path that are used.
        snapshot: Name of the compiled data.
        digest: `sha256:...` over the names and digests of all files at the path; empty when there is none.
        by_company: Files of the original FinQA are divided anew so that no company is in two splits.
    """

    kind: Kind
    path: str = ""
    files: tuple[str, ...] = ()
    snapshot: str = DEFAULT_NAME
    digest: str = ""
    by_company: bool = True


def find_data(settings: Settings, *, named: bool) -> DataSource:
    """Looks at what the settings name.

    Args:
        settings: Environment and data.
        named: `data.snapshot` was given, and is not the default.

    Raises:
        DataError: There is nothing at the path, or nothing that can be read.
        ConfigError: There is no such environment.
    """
    path, snapshot = settings.data.path, settings.data.snapshot
    if not registry().find("environment", settings.environment.name).snapshotless:
        if path is None:
            own = named or _is_of_the_user(LocalSnapshots(settings.data.home))
            return DataSource(kind="snapshot" if own else "embedded", snapshot=snapshot)
        if not path.is_dir():
            remedy = "--environment finqa-text, or finqa data import finqa-json FILE --out FOLDER"
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


def check_unchanged(data: DataSource) -> None:
    """Looks whether the files are still those that the pipeline began with.

    Raises:
        ConfigError: They are not.
        DataError: There are none any more.
    """
    if not data.digest:
        return
    path = Path(data.path)
    if _digest(path, _files(path) if data.kind == "folder" else _question_files(path)) != data.digest:
        raise ConfigError(
            f"The data at {path} was changed since the pipeline began.",
            remedy="put back what was there, or begin anew with another --output",
        )


def data_commands(data: DataSource, run: Path, *, settings: str, seed: int) -> list[tuple[str, list[str], str]]:
    """Steps 00 and 01 as (folder, arguments, file for stdout or nothing). Generated questions need neither.

    Args:
        data: The questions.
        run: Folder of the pipeline.
        settings: File that says where snapshots are.
        seed: Of the split by company.
    """
    checked, dataset = "00_data_validation", "01_dataset"
    build = ["snapshot", "build", "--config", settings, "--snapshot-name", data.snapshot, "--data"]
    match data.kind:
        case "embedded":
            return [
                (checked, ["data", "check", "embedded", "--out", f"{run / checked}"], ""),
                (dataset, [*build, f"{run / checked / 'data'}", "--json"], "snapshot.json"),
            ]
        case "folder":
            return [
                (checked, ["data", "check", data.path, "--out", f"{run / checked}"], ""),
                (dataset, [*build, data.path, "--json"], "snapshot.json"),
            ]
        case "snapshot":
            return [(checked, ["snapshot", "show", data.snapshot, "--config", settings, "--json"], "snapshot.json")]
        case "generated":
            return []
    checks = [(f"{checked}/{Path(file).stem}", file) for file in data.files]
    commands = [(name, ["data", "check", file, "--out", f"{run / name}"], "") for name, file in checks]
    if data.kind == "finqa":
        divided = ["--split-by", "company" if data.by_company else "file", "--seed", str(seed)]
        commands.append((dataset, ["data", "prepare", *data.files, *divided, "--out", f"{run / dataset}"], ""))
    return commands


def data_path(data: DataSource, run: Path) -> Path | None:
    """What `--data` is for the steps after 01."""
    if data.kind == "finqa":
        return run / "01_dataset"
    return Path(data.path) if data.kind == "rows" else None


def _is_of_the_user(store: LocalSnapshots) -> bool:
    """The snapshot that is used when none is named holds other data than the embedded: it must not be replaced."""
    try:
        current = store.get(DEFAULT_NAME).digest
    except DataError:  # there is none, or it is damaged
        return False
    with tempfile.TemporaryDirectory(prefix="finqa-data-") as folder:
        compiled = Path(folder) / "compiled"
        compiled.mkdir()
        return compile_snapshot(read_layout(embedded_layout(Path(folder) / "layout")), compiled) != current


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _question_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(file for file in path.glob("*") if file.suffix in _ENDINGS) if path.is_dir() else []
    used = [file for file in found if split_of_name(file)]
    if not used:
        remedy = "--data takes a question file, or a folder with train, dev and test (.json, .jsonl)"
        raise DataError(f"There are no question files at {path}.", remedy=remedy)
    return used


def _is_finqa(file: Path) -> bool:
    try:
        first = next(iter(read_rows(file)), None)
    except ProblemError as error:
        raise as_data_error([error.problem], remedy=f"finqa data check {file}") from error
    if first is None:
        raise DataError(f"{file} has no rows.", remedy="give --data another file")
    return not isinstance(first, Problem) and is_finqa(first[1])


def _digest(path: Path, files: Sequence[Path]) -> str:
    try:
        return manifest_digest({str(file.relative_to(path)): file_digest(file) for file in files})
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error


def _name(path: Path, digest: str) -> str:
    """A name for the snapshot of a folder: the same data has the same, other data never takes its place."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", path.resolve().name).strip("-")[:40] or "data"
    return f"{words}-{digest.removeprefix('sha256:')[:12]}"
