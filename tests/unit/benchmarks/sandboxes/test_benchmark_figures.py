from __future__ import annotations

import json

from benchmarks.figures import Figure, as_json, as_table, at_least, at_most, exactly, note


def test_limits() -> None:
    assert at_most("x", 1.2, 1.2).passed and not at_most("x", 1.21, 1.2).passed
    assert at_least("x", 2.0, 2.0).passed and not at_least("x", 1.99, 2.0).passed
    assert exactly("x", 0, 0).passed and not exactly("x", 1, 0).passed
    assert note("x", 5).passed and not note("x", 5).limit


def test_a_failure_is_seen_in_both_forms() -> None:
    parts: dict[str, list[Figure]] = {"ready": [at_most("wall", 2.0, 1.2, "why"), note("sandboxes", 500)], "chaos": []}
    assert as_table(parts).splitlines()[2:] == [
        "| ready | wall | 2 | <= 1.2 | FAIL | why |",
        "| ready | sandboxes | 500 |  |  |  |",
    ]
    document = json.loads(as_json(parts, {"seed": 3}))
    assert document["passed"] is False and document["seed"] == 3
    assert [figure["part"] for figure in document["figures"]] == ["ready", "ready"]
