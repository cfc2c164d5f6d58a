"""The HTML page: data as escaped JSON, one script and one style, and a content policy that allows nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finqa_cli import __version__

COMPRESS_ABOVE = 1_000_000
"""Size of all data in bytes above which each part is compressed; browsers unpack it by `DecompressionStream`."""

ASSETS = Path(__file__).with_name("assets")
_VIEWS = ("base.js", "charts.js", "overview.js", "progress.js", "episodes.js", "episode.js", "comparison.js")
SCRIPTS = (*_VIEWS, "main.js")
VIEW_SCRIPTS = (*_VIEWS, "runs.js", "live.js", "main.js")
"""Scripts of the pages that `finqa view` serves; the two that a report's file does not contain load data."""

GENERATOR = '<meta name="generator" content="finqa report'

_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def escape_json(value: Any) -> str:
    """Returns JSON in ASCII that no HTML parser takes for markup: `<`, `>` and `&` are escaped.

    Lone surrogates, which UTF-8 cannot represent, are escaped as well.

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def render_page(parts: Mapping[str, Any], *, home: str = "") -> str:
    """Returns the HTML file; it contains data of runs only in the data scripts.

    Args:
        parts: Id of a data script -> its data, which the page parses when it is needed.
        home: Relative address of the list of runs, for a page that `finqa view` serves and that loads its data from
            there; empty for a report, which loads nothing.
    """
    import jinja2
    from markupsafe import Markup

    style, script = _style(), _script(VIEW_SCRIPTS if home else SCRIPTS)
    texts = {name: escape_json(value) for name, value in parts.items()}
    packed = sum(map(len, texts.values())) > COMPRESS_ABOVE
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string((ASSETS / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        policy=Markup(_policy(style, script, loads=bool(home))),
        name="finqa view" if home else "finqa report",
        home=home,
        packed=packed,
        parts=[(name, Markup(_packed(text) if packed else text)) for name, text in texts.items()],
    )


def view_policy() -> str:
    """Returns the Content-Security-Policy of pages that `finqa view` serves: they may load only data of that server."""
    return _policy(_style(), _script(VIEW_SCRIPTS), loads=True)


def _policy(style: str, script: str, *, loads: bool) -> str:
    connect = "connect-src 'self'; " if loads else ""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; {connect}base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _style() -> str:
    return (ASSETS / "report.css").read_text(encoding="utf-8")


def _script(names: Sequence[str]) -> str:
    bodies = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)
    return f'"use strict";\n(() => {{\n{bodies}\n}})();\n'


def _packed(text: str) -> str:
    """Returns a JSON string with the compressed text in base64; the same text always gives the same string."""
    return json.dumps(base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)).decode("ascii"))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
