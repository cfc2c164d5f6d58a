"""The files of `--config`: your own, or those that ship with the package by name.

Two tiers go together, any with any: a model tier says what is trained and how it fits the machine, an optimizer tier
says how it is trained. A file of a tier begins with `tier = "model"` or `tier = "optimizer"` and sets nothing of the
other tier, so their order does not matter. A file without `tier` may set everything.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from finqa_cli.errors import ConfigError
from finqa_cli.settings.layers import Layer, flatten
from finqa_cli.settings.settings_files import FORMATS, Document, read_document

LIST = "finqa config list"

RESOLVED = "resolved"
"""Key of a file that finqa wrote with all settings of a step: nothing in it was named by a user there."""

TIERS: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "lora", "codec", "sft.learning_rate", "train.token_budget", "train.gradient_checkpointing"),
    "optimizer": (
        "optimizer",
        "learner",
        "generation.max_gen_tokens",
        "generation.temperature",
        "generation.top_p",
        "train",
        "sft",
    ),
}
"""What a file of each tier may set. Where both name a setting, it is the first one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """A file that ships with the package.

    Attributes:
        name: What `--config` takes.
        kind: `model` or `optimizer` tier, `settings` of no tier, `specification` of a model to be made, or
            `experiment`.
        about: What its opening comment says.
        file: Where it lies.
    """

    name: str
    kind: str
    about: str
    file: Path


def list_shipped() -> list[Shipped]:
    """All of them, by folder and name."""
    return [_described(file) for file in shipped().values()]


def shipped() -> dict[str, Path]:
    """Folder and name, such as `models/qwen3-4b`, of each file that ships with the package."""
    root = Path(str(resources.files("finqa_cli"))) / "configs"
    return {f"{file.parent.name}/{file.stem}": file for file in sorted(root.glob("*/*.toml"))}


def is_shipped(origin: str) -> bool:
    """Whether a setting of this origin, as `Value` has it, was set by a file that ships with the package."""
    kind, _, place = origin.partition(" ")
    name = place.rpartition(":")[0] if place.rpartition(":")[2].isdigit() else place
    known = shipped()
    named = f"{name.removesuffix('.toml')}" in known and not Path(name).exists()
    return kind == "file" and (named or Path(name).resolve() in {file.resolve() for file in known.values()})


def tier_of(path: str) -> str | None:
    """The tier that a setting belongs to, if it belongs to one."""
    for tier, paths in TIERS.items():
        if any(path == known or path.startswith(f"{known}.") for known in paths):
            return tier
    return None


def file_layers(references: Sequence[str | Path]) -> list[Layer]:
    """One layer for each file or name, in order.

    Raises:
        ConfigError: One is absent, unreadable or not valid, sets what is no setting or of another tier, or two are of
            the same tier.
    """
    layers: list[Layer] = []
    seen: dict[str, str] = {}
    for reference in references:
        document = _find(str(reference))
        layer, tier = _layer(document)
        if tier in seen:
            raise ConfigError(
                f"{seen[tier]} and {document.name} are both of the {tier} tier; a run takes one of each.",
                remedy="leave one out, or make a file of your own that sets the difference, without `tier`",
            )
        if tier:
            seen[tier] = document.name
        layers.append(layer)
    return layers


def _described(file: Path) -> Shipped:
    document = read_document(file)
    marks = {"architecture": "specification", "experiment": "experiment"}
    marked = (kind for mark, kind in marks.items() if mark in document.tree)
    kind = next(marked, document.tree.get("tier", "settings"))
    comment = itertools.takewhile(lambda line: line.startswith("#"), document.text.splitlines())
    return Shipped(name=file.stem, kind=kind, about=" ".join(line.lstrip("# ") for line in comment), file=file)


def _find(reference: str) -> Document:
    """The file, or what ships under that name, with or without its folder."""
    path = Path(reference).expanduser()
    if path.suffix.lower() in FORMATS or path.is_file() or reference.startswith((".", "/", "~")):
        return read_document(path)
    known = shipped()
    found = [name for name in known if reference in (name, name.rpartition("/")[2])]
    if not found:
        names = [name.rpartition("/")[2] for name in known]
        nearest = difflib.get_close_matches(reference.rpartition("/")[2], names, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(
            f"{reference!r} is neither a settings file nor the name of one that ships with finqa.{hint}", remedy=LIST
        )
    return read_document(known[found[0]], f"{found[0]}.toml")


def _layer(document: Document) -> tuple[Layer, str | None]:
    """The settings of a file, and its tier if it is of one."""
    tree = dict(document.tree)
    if "architecture" in tree:
        raise ConfigError(
            f"{document.name} specifies a model that is to be made; it holds no settings.",
            remedy=f"finqa sft DEMONSTRATIONS --init {document.file}; for the embedded one: --config embedded",
        )
    if "experiment" in tree:
        raise ConfigError(
            f"{document.name} is an experiment, a matrix of trainings; it holds no settings of one.",
            remedy=f"finqa experiment run {document.file}",
        )
    resolved = tree.pop(RESOLVED, False) is True
    tier = tree.pop("tier", None)
    if "tier" in document.tree and tier not in tuple(TIERS):
        raise ConfigError(
            f"tier = {tier!r} ({document.place('tier')}): tiers are {', '.join(TIERS)}.",
            remedy=f"Mend {document.name}.",
        )
    kind = "plan" if resolved else "file"
    layer = flatten(tree, lambda path: kind + document.place(path).removeprefix("file"))
    for path, value in layer.items():
        if tier and tier_of(path) != tier:
            owner = tier_of(path)
            belongs = f"it belongs to the {owner} tier" if owner else "it belongs to neither tier"
            raise ConfigError(
                f"{path} ({value.origin}) cannot be set by a file of the {tier} tier: {belongs}.",
                remedy=f"move it to another --config file, or take `tier` out of {document.name}",
            )
    return layer, tier
