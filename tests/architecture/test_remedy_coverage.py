"""No remedy goes without a test by accident: each place is executed, or listed with the reason why not."""

from __future__ import annotations

from remedies import ledger
from remedies.rows.all_rows import FAULTS
from remedy_coverage import ELSEWHERE, LEFT, NOT_HERE, coverage, source_of
from remedy_sites import remedies


def test_what_is_left_only_gets_less() -> None:
    left = sorted(site.key for site in coverage().left)
    assert len(left) == LEFT, f"remedy_coverage.LEFT is {LEFT}; without a test are {len(left)}:\n" + "\n".join(left)


def test_names_of_places_are_unique() -> None:
    keys = [site.key for site in remedies()]
    assert len(set(keys)) == len(keys)


def test_the_ledger_is_of_places_and_rows_that_exist() -> None:
    known = {site.key for site in remedies()}
    assert not ledger.executed().keys() - known, "RECORD_REMEDIES=1 python -m pytest tests/remedies"
    assert not ledger.read().keys() - FAULTS.keys(), "RECORD_REMEDIES=1 python -m pytest tests/remedies"


def test_tests_elsewhere_exist_and_name_the_remedy() -> None:
    texts = {site.key: site.texts for site in remedies()}
    for site, (test, named) in ELSEWHERE.items():
        assert any(named in text for text in texts[site]), f"{site} says nothing of {named!r}"
        assert named in source_of(test), f"{test} does not name {named!r}"
        assert site not in ledger.executed(), f"a row executes {site} as well"


def test_every_reason_is_needed() -> None:
    assert coverage().not_here.keys() == NOT_HERE.keys()
