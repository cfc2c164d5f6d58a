"""Markdown from jinja2 templates: every value is escaped, unless the template marks it as `safe`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def render(template: Path, **values: object) -> str:
    """Renders a template file; several successive blank lines become one.

    Escaping also removes spaces at both ends of a value, so separators belong in the text of the template.

    Templates may call `table(headers, rows)` for tables whose columns are data, and have the filters `code` for text
    between backticks, `number` for at most three digits and `points` for a share in signed percentage points.
    """
    import jinja2
    from markupsafe import Markup

    def escaped(value: Any) -> Any:
        return value if hasattr(value, "__html__") else Markup(cell(value))

    environment = jinja2.Environment(
        autoescape=True,  # leaves what `escaped` returns as it is
        finalize=escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "code": lambda text: Markup(" ".join(text.replace("`", "'").split())),
        "number": lambda value: f"{value:.3g}",
        "points": points,
    }
    environment.globals["table"] = lambda headers, rows: Markup(_table(headers, rows))
    text = environment.from_string(template.read_text(encoding="utf-8")).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def cell(value: object) -> str:
    """Escapes a text so that it stays in its line and table cell and contains no markup."""
    text = " ".join(str(value).split()).replace("\\", "\\\\").replace("<", "&lt;").replace("](", "]\\(")
    return re.sub(r"[|`*]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def _table(headers: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def points(share: float) -> str:
    """Formats a share in signed percentage points."""
    return f"{100 * share:+.1f}"
