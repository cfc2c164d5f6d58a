"""Writes the embedded tasks as files in verl's schema."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_generate import generate
from finqa_plugins.environments.forecast.forecast_rows import as_record


def main(arguments: list[str] | None = None) -> int:
    """Write one file for each split and return the exit code; an existing file is never overwritten."""
    parser = argparse.ArgumentParser(prog="make_rows", description=__doc__)
    defaults = ForecastConfig()
    parser.add_argument("--out", type=Path, required=True, help="folder, created if it is missing")
    parser.add_argument("--format", choices=("parquet", "jsonl"), default="parquet")
    parser.add_argument("--companies", type=int, default=defaults.companies)
    parser.add_argument("--questions", type=int, default=defaults.questions, help="of each company")
    parser.add_argument("--noise", type=float, default=None, help="uncertainty of every row; default: 0 to 1")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    given = vars(parser.parse_args(arguments))
    out: Path = given.pop("out")
    ending: str = given.pop("format")
    try:
        data = generate(ForecastConfig(inputs="question_full", **given))
        out.mkdir(parents=True, exist_ok=True)
        for split, rows in data.rows.items():
            path = out / f"{split}.{ending}"
            records = [as_record(row, split=split, index=index) for index, row in enumerate(rows)]
            _write(path, records)
            sys.stdout.write(f"{path}: {len(records)} rows\n")
    except ValidationError as error:
        return _failed(f"--{error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}", 2)
    except ImportError:
        return _failed("Writing Parquet needs pyarrow: pip install 'finqa[data]', or --format jsonl", 78)
    except OSError as error:
        return _failed(f"{error.filename or out}: {error.strerror or error}", 74)
    return 0


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        return
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    with path.open("xb") as file:
        parquet.write_table(arrow.Table.from_pylist(records), file)


def _failed(reason: str, code: int) -> int:
    sys.stderr.write(f"{reason}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
