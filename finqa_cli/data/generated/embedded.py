"""The data set that ships with the package. Write it again with `python -m finqa_cli.data.generated.embedded`."""

from __future__ import annotations

import zipfile
from pathlib import Path

from finqa_cli.data.dataset import DataSet, SplitShares
from finqa_cli.data.generated.generate import GenerateSpec, generate
from finqa_cli.data.openenv_layout.layout import layout_files
from finqa_cli.errors import DataError, StorageError

EMBEDDED_SPEC = GenerateSpec(
    companies=60, questions=14, seed=7, cells="numbers", shares=SplitShares(train=36 / 60, dev=8 / 60, test=16 / 60)
)
EMBEDDED_FILE = Path(__file__).with_name("embedded.zip")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def embedded_layout(folder: Path) -> Path:
    """Extracts the embedded data set into `folder` and returns it.

    Raises:
        DataError: The installation lacks the file, or it is damaged.
        StorageError: Writing failed.
    """
    try:
        with zipfile.ZipFile(EMBEDDED_FILE) as archive:
            archive.extractall(folder)
    except (FileNotFoundError, zipfile.BadZipFile) as error:
        remedy = "install finqa again from the original source"
        raise DataError(f"The embedded data set {EMBEDDED_FILE} is missing or damaged.", remedy=remedy) from error
    except OSError as error:
        raise StorageError(
            f"Extracting the embedded data set to {folder} failed: {error.strerror or error}."
        ) from error
    return folder


def write_embedded(dataset: DataSet, path: Path) -> None:
    """Packs the layout of a data set into one zip without time stamps."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in layout_files(dataset):
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)


if __name__ == "__main__":
    write_embedded(generate(EMBEDDED_SPEC), EMBEDDED_FILE)
