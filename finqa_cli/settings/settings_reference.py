"""Files written from the declarations of settings: docs/reference.md, part of .env.example, finqa/keywords.py.

`make reference` writes them; a test compares them with the declarations.
"""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from types import NoneType
from typing import Any

from finqa_cli.settings.declarations import Declaration
from finqa_cli.settings.offered import OF_EVAL, OF_PLAY, OF_TRAIN, keywords_of, offered_settings
from finqa_cli.settings.schema import DECLARATIONS, Choice, Settings

PAGE = Path("docs/reference.md")
EXAMPLE = Path(".env.example")
KEYWORDS = Path("finqa/keywords.py")

MARK = "# --- Settings, written by `make reference` "

_FUNCTIONS = {
    "EvaluateKeywords": ("eval", OF_EVAL),
    "TrainKeywords": ("train", OF_TRAIN),
    "SampleKeywords": ("sample", OF_PLAY),
}
"""Class of keywords -> command, and the settings that it offers."""

INTRODUCTION = """# Settings

Written by `make reference` from `finqa_cli/settings/schema.py`, where every setting is declared once.

Every setting can be given, from the weakest to the strongest layer, by a profile (of the embedded policies), a file of
`--config` (TOML, YAML or JSON), `.env`, an environment variable, and a flag or `--set SETTING=VALUE`. The environment
variable of `train.seed` is `FINQA_TRAIN__SEED`; some settings have a second, shorter variable, shown below. Two
variables for one setting, or a flag and `--set`, are an error. `finqa config show --origin` shows which layer set each
value. A command takes the flags that have an effect on it: `finqa COMMAND --help-all`. Settings with the default `auto`
are chosen by what the machine has.
"""


def reference_page() -> str:
    """Return the content of docs/reference.md."""
    parts = [INTRODUCTION]
    for section, field in Settings.model_fields.items():
        own = [each for path, each in DECLARATIONS.items() if path.partition(".")[0] == section]
        model: Any = field.annotation
        about = "" if model is Choice or not isinstance(model, type) else inspect.getdoc(model) or ""
        rows = [
            "| setting, flags, variable | meaning, type, default |",
            "| --- | --- |",
            *(_row(each) for each in own),
        ]
        parts.append("\n".join([f"## {section}\n", *([about, ""] if about else []), *rows, ""]))
    return "\n".join(parts)


def variables_text() -> str:
    """Return the part of .env.example that is about settings, from `MARK` on."""
    lines = [MARK + "-" * (118 - len(MARK))]
    for each in DECLARATIONS.values():
        if each.about.variable:
            unit = f", in {each.about.unit}" if each.about.unit else ""
            default = ",".join(each.default) if isinstance(each.default, tuple) else each.shown_default
            lines += [f"# {each.about.help}{unit}.", f"# {each.about.variable}={default}"]
    return "\n".join(lines) + "\n"


def keywords_module() -> str:
    """Return the content of finqa/keywords.py: a TypedDict for each function of the Python interface."""
    lines = [
        '"""Keywords of the functions: the flags of their commands. Written by `make reference`."""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Sequence",
        "from pathlib import Path",
        "from typing import TypedDict",
    ]
    for name, (command, offered) in _FUNCTIONS.items():
        lines += ["", "", f"class {name}(TypedDict, total=False):", f'    """Flags of `finqa {command}`."""', ""]
        for each in offered_settings(offered):
            lines += [f"    {keyword}: {_annotation(each)} | None" for keyword in keywords_of(each)]
    return "\n".join(lines) + "\n"


def generated_files(root: Path) -> dict[Path, str]:
    """Return each file that is written, as a path, with the content that it should have.

    Args:
        root: The checkout, whose .env.example has a part that people write.
    """
    written = (root / EXAMPLE).read_text(encoding="utf-8").partition(MARK)[0]
    contents = {PAGE: reference_page(), EXAMPLE: written + variables_text(), KEYWORDS: keywords_module()}
    return {root / path: content for path, content in contents.items()}


def _annotation(each: Declaration) -> str:
    """Return the type annotation of a keyword."""
    if each.is_list:
        return "str | Sequence[str]" if each.flag_type is str or each.path == "trackers" else "str | Sequence[int]"
    if each.path == "train.learner_processes":
        return "int | str"
    if typing.get_origin(each.flag_type) is typing.Literal:
        return "str"
    return "str | Path" if each.flag_type is Path else str(each.flag_type.__name__)


def _row(each: Declaration) -> str:
    """Return a table row with two cells, which fits a narrow screen."""
    names = (each.path, *each.about.flags.split(), each.about.variable)
    unit = f", in {each.about.unit}" if each.about.unit else ""
    shown = each.shown_default or ("off" if each.default is False else "")
    default = f", default `{shown}`" if shown else ""
    cells = ("<br>".join(f"`{name}`" for name in names if name), f"{each.about.help}{unit}<br>{_kind(each)}{default}")
    return f"| {' | '.join(cells)} |"


def _kind(each: Declaration) -> str:
    """Return the type in words."""
    if each.choices:
        return " or ".join(f"`{choice}`" for choice in each.choices)
    kinds = [kind for kind in typing.get_args(each.annotation) or (each.annotation,) if kind is not NoneType]
    kind = typing.get_args(kinds[0])[0] if typing.get_origin(kinds[0]) is typing.Annotated else kinds[0]
    name = {bool: "yes or no", int: "integer", float: "number", str: "text", Path: "path"}.get(kind, "name")
    return f"list of {name}s" if each.is_list else name


if __name__ == "__main__":
    for path, content in generated_files(Path.cwd()).items():
        path.write_text(content, encoding="utf-8")
