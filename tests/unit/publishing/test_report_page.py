"""The file itself: what of a run is markup (nothing), what a browser may load (nothing), and its size."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fixtures.report_runs import PAYLOADS, hostile, training

from finqa_cli.publishing.report.report_page import (
    ASSETS,
    COMPRESS_ABOVE,
    SCRIPTS,
    VIEW_SCRIPTS,
    escape_json,
    render_page,
    view_policy,
)
from finqa_cli.publishing.report.run_report import write_report


class Page(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[dict[str, str | None], str]] = []
        self.outside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        if tag in ("script", "style") and self.cdata_elem:
            self.raw.append((attributes, data))
        else:
            self.outside += data

    @property
    def data(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for attributes, text in self.raw:
            if attributes.get("type") == "application/json":
                name = str(attributes["id"])
                found[name] = found.get(name, "") + text
        return found


def texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in texts_of(each)]
    return [text for each in value for text in texts_of(each)] if isinstance(value, list) else []


def test_thirty_payloads_are_data_and_nothing_else(tmp_path: Path) -> None:
    assert len(set(PAYLOADS)) == 30
    run = hostile(tmp_path / "<img src=x onerror=window.hit=1>")
    page = Page((run / "report.html").read_text("utf-8") if write_report([run]) else "")
    plain = Page(render_page({"report": {}}))
    tags = [tag for tag, attributes in page.elements if attributes.get("type") != "application/json"]
    assert tags == [tag for tag, attributes in plain.elements if attributes.get("type") != "application/json"]
    assert page.outside.strip() == plain.outside.strip()
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    for text in page.data.values():
        assert not re.search("[<>&\u2028\u2029]", text) and text.isascii()
    found = {text for part in page.data.values() for text in texts_of(json.loads(part))}
    for payload in PAYLOADS:  # shown whole, as text
        assert payload in found
    outside = (run / "report.html").read_text("utf-8")
    for text in page.data.values():
        outside = outside.replace(text, "")
    assert "window.hit" not in outside and "evil.example" not in outside


def test_names_of_folders_are_data(tmp_path: Path) -> None:
    plain = Page(render_page({"report": {}}))
    names = [payload for payload in PAYLOADS if not set(payload) & {"/", "\x00", "\ud800"}]
    assert len(names) > 8
    for name in names:
        run = training(tmp_path / name, steps=1, questions=1, size=1)
        page = Page(write_report([run]).path.read_text("utf-8"))
        assert json.loads(page.data["report"])["runs"][0]["head"]["label"] == name
        assert page.outside.strip() == plain.outside.strip()


def test_every_asset_is_part_of_the_page() -> None:
    assert {file.name for file in ASSETS.iterdir()} == {*SCRIPTS, *VIEW_SCRIPTS, "report.css", "report.html.j2"}


def test_the_policy_of_the_page_allows_its_script_and_its_style_only() -> None:
    page = Page(render_page({"report": {}}))
    (policy,) = [
        str(attributes["content"]) for _, attributes in page.elements if attributes.get("http-equiv") is not None
    ]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    for wanted in ("base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"):
        assert wanted in policy
    text = render_page({"report": {}})
    for tag in ("script", "style"):
        body = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body[0].encode()).digest()).decode()
        assert len(body) == 1 and f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", text)


def test_a_served_page_may_load_data_of_its_own_server_and_a_report_may_not() -> None:
    served, report = (Page(render_page({"source": {}}, home=home)) for home in ("../", ""))
    policies = [
        next(str(attributes["content"]) for _, attributes in page.elements if attributes.get("http-equiv"))
        for page in (served, report)
    ]
    assert "connect-src 'self';" in policies[0] == view_policy() and "connect-src" not in policies[1]
    assert ("a", {"class": "brand", "href": "../"}) in served.elements


def test_the_scripts_write_no_markup() -> None:
    for name in {*SCRIPTS, *VIEW_SCRIPTS}:
        text = (ASSETS / name).read_text("utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|import\(", text)
        assert ("fetch(" in text) == (name == "live.js")  # which is in no report
        assert not re.search(r"\.style\b|</script", text)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("home", ["", "./"])
def test_the_script_is_javascript(tmp_path: Path, home: str) -> None:
    (body,) = re.findall(r"<script>(.*?)</script>", render_page({"report": {}}, home=home), re.DOTALL)
    (tmp_path / "report.js").write_text(body)
    subprocess.run(["node", "--check", str(tmp_path / "report.js")], check=True, timeout=60)


def test_what_json_of_a_page_must_not_contain_is_escaped() -> None:
    value = {"</script>": ["<!--", "&amp;", "\u2028\u2029", "\ud800", "é"]}
    assert json.loads(escape_json(value)) == value and not re.search("[<>&]", escape_json(value))
    with pytest.raises(ValueError, match="not JSON compliant"):
        escape_json(float("nan"))


def test_large_data_is_compressed_and_the_same_twice() -> None:
    parts = {"report": {"text": "x" * COMPRESS_ABOVE}, "details-0-0": ["</script>"]}
    page = Page(render_page(parts))
    assert all(a["data-encoding"] == "gzip-base64" for a, _ in page.raw if a.get("type"))
    for name, text in page.data.items():
        assert json.loads(gzip.decompress(base64.b64decode(json.loads(text)))) == parts[name]
    assert render_page(parts) == render_page(parts) and len(render_page(parts)) < 200_000


def test_details_are_in_the_chunks_of_their_rows(tmp_path: Path) -> None:
    run = training(tmp_path / "run", steps=5)
    write_report([run], tmp_path / "out.html")
    data = {name: json.loads(text) for name, text in Page((tmp_path / "out.html").read_text("utf-8")).data.items()}
    (shown,) = data["report"]["runs"]
    assert len(shown["rows"]) == 80 and [len(data[f"details-0-{chunk}"]) for chunk in (0, 1)] == [50, 30]
    row = dict(zip(shown["columns"], shown["rows"][60], strict=True))
    assert data["details-0-1"][10]["turns"][0]["version"] == row["version_low"] == row["iteration"]
    assert data["details-0-1"][10]["messages"][1]["text"] == f"Question: {shown['questions'][row['question']]['id']}"
