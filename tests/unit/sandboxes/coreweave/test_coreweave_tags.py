"""Names and labels of sandboxes as tags."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.sandboxes.coreweave.tags import creation_tags, is_name, labels_in, name_in, new_name, search_tags

NAMES = st.text(st.characters(exclude_characters="=", exclude_categories=("Cs",)), max_size=20)
LABELS = st.dictionaries(NAMES, st.text(st.characters(exclude_categories=("Cs",)), max_size=40), max_size=5)


@given(LABELS, NAMES)
def test_labels_come_back_and_are_found(labels: dict[str, str], problem: str) -> None:
    name = new_name()
    tags = creation_tags(name, labels, problem)
    assert labels_in(tags) == labels
    assert set(search_tags(labels)) <= set(tags)
    assert name_in(tags) == name


def test_tags_are_those_that_the_seed_lists() -> None:
    tags = creation_tags("finqa-0123456789ab", {"finqa.run": "r7", "finqa.host": "h"}, "mbpp-11")
    assert tags == [
        "finqa",
        "finqa-0123456789ab",
        "job-r7",
        "problem-mbpp-11",
        "label:finqa.run=r7",
        "label:finqa.host=h",
    ]


def test_a_strangers_sandbox_is_none_of_ours() -> None:
    assert name_in(["finqa-0123456789ab", "job-1"]) is None
    assert name_in(["finqa", "job-1"]) is None
    assert not is_name("ef9ac7ed-af04-4fcf-be47-f55e3be6e59d")
    assert not is_name("finqa-0123456789abc")
    assert new_name() != new_name()
