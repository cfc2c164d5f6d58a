"""The split guard as a pure function."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.data import EMBEDDED_SPEC
from finqa_cli.data.generated.generate import generate
from finqa_cli.data.split_guard import (
    check_demonstrations,
    check_other_data,
    check_training_data,
    describe,
    find_overlap,
    find_overlap_of_sets,
    normalize_text,
)
from finqa_cli.errors import DataError
from finqa_cli.types import DataInfo, Task

DATA = DataInfo(name="mine", digest="sha256:0")
SNORKEL = DataInfo(name="snorkel", digest="sha256:1", evaluation_only=True)


def task(identity: str, prompt: str = "What was revenue in 2023?", cluster: str = "acme", split: str = "train") -> Task:
    return Task(id=identity, prompt=prompt, split=split, cluster=cluster)


def held_out(identity: str, prompt: str = "Another question", cluster: str = "globex") -> Task:
    return task(identity, prompt, cluster, "dev")


def test_data_for_evaluation_is_refused_unless_allowed() -> None:
    with pytest.raises(
        DataError, match="'snorkel' cannot be used for training: it is marked for evaluation only"
    ) as caught:
        check_training_data(SNORKEL, [task("a")], [])
    assert "--allow-evaluation-data" in caught.value.remedy and caught.value.exit_code == 65
    check_training_data(SNORKEL, [task("a")], [], allow_evaluation_only=True)


def test_the_split_test_is_refused_whatever_may_overlap() -> None:
    with pytest.raises(DataError, match="split test of 'mine'"):
        check_training_data(DATA, [task("a", split="test")], [], allow_overlap=True)
    check_training_data(DATA, [task("a", split="test")], [], allow_evaluation_only=True)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (held_out("a"), r"1 task id \(a\)"),
        (held_out("b", cluster="ACME"), r"1 company \(acme\)"),
        (held_out("b", "what was Revenue, in 2023", "acme"), r"1 question \(acme: What was revenue in 2023\?\)"),
    ],
)
def test_what_is_evaluated_on_is_not_trained_on(other: Task, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        check_training_data(DATA, [task("a")], [other])
    assert "split train" in caught.value.message and "split dev" in caught.value.message
    assert "--allow-overlap" in caught.value.remedy and "the train and dev files" in caught.value.remedy
    check_training_data(DATA, [task("a")], [other], allow_overlap=True)


def test_the_same_words_about_another_company_are_another_question() -> None:
    assert not find_overlap([task("a")], [task("b", cluster="globex")])


def test_without_companies_the_words_alone_tell_questions_apart() -> None:
    overlap = find_overlap([task("a", cluster="")], [task("b", "what WAS revenue in 2023 ?", cluster="")])
    assert overlap.questions == ("What was revenue in 2023?",) and not overlap.clusters
    assert not find_overlap([task("a", cluster="")], [task("b", "And profit?", cluster="")])


LONG = "What was the total revenue growth in 2023?"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (LONG, "what was the total revenue growth, in 2023"),
        (LONG, f"For company `alphabet`, here is the question: {LONG}"),
        (f"For company `GOOGL`, here is the question: {LONG}", f"For company `alphabet`, here is the question: {LONG}"),
    ],
)
def test_between_data_sets_the_words_alone_decide(mine: str, theirs: str) -> None:
    training, evaluation = [task("a", mine, "GOOGL")], [task("b", theirs, "alphabet", "test")]
    assert not find_overlap(training, evaluation)
    with pytest.raises(DataError, match=r"snapshot 'snorkel', which is for evaluation only: 1 question \(") as caught:
        check_other_data(training, "snorkel", evaluation)
    assert mine in caught.value.message and "--allow-overlap" in caught.value.remedy


def test_between_data_sets_companies_count_but_neither_ids_nor_short_questions() -> None:
    overlap = find_overlap_of_sets([task("a", cluster="Acme")], [task("a", "And the profit?", "acme"), task("b")])
    assert overlap.clusters == ("Acme",) and not overlap.questions and not overlap.ids
    check_other_data([task("a", "what was it?", "GOOGL")], "snorkel", [task("a", "what was it?", "alphabet")])
    check_other_data([task("a", LONG, "")], "snorkel", [task("b", "Another question about the profit of 2023?", "")])


def test_a_refusal_counts_all_and_shows_five() -> None:
    tasks = [task(f"q{number}", f"{'long ' * 100}{number}", f"company {number:02d}") for number in range(30)]
    text = describe(find_overlap(tasks, tasks))
    assert text.startswith("30 companies (company 00, company 01, company 02, company 03, company 04, ...)")
    assert "30 questions" in text and "30 task ids" in text and len(text) < 1500


def test_the_embedded_data_passes() -> None:
    dataset = generate(EMBEDDED_SPEC)
    by_split: dict[str, list[Task]] = {}
    for one in dataset.questions:
        by_split.setdefault(one.split, []).append(
            Task(id=one.id, prompt=one.user_query, split=one.split, cluster=one.company)
        )
    check_training_data(DATA, by_split["train"], by_split["dev"] + by_split["test"])
    texts = [{normalize_text(one.prompt) for one in by_split[split]} for split in ("train", "test")]
    assert texts[0] & texts[1], "the same words are asked of different companies"


def test_demonstrations_of_the_test_split_or_of_evaluation_data_are_refused() -> None:
    test = [task("a"), task("b", split="test"), task("b", split="test")]
    with pytest.raises(DataError, match=r"2 of 3 demonstrations in runs/x solve questions of the split test: b\."):
        check_demonstrations("runs/x", test, None)
    with pytest.raises(DataError, match="'snorkel', which is for evaluation only"):
        check_demonstrations("runs/x", [task("a")], SNORKEL)
    check_demonstrations("runs/x", test, SNORKEL, allow_evaluation_only=True)
    check_demonstrations("runs/x", [task("a"), held_out("b")], DATA)


@given(st.text())
def test_normalizing_twice_changes_nothing(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) == once or not text.isascii()
    assert normalize_text(f"  {text.strip()}!! ") == once or not text.isascii()


NAMES = st.sampled_from(["acme", "Acme", "globex", "", "x y", "X_Y"])
TASKS = st.lists(st.builds(task, st.sampled_from("abcdef"), st.sampled_from(["p", "q", "P!"]), NAMES), max_size=6)


@given(TASKS, TASKS)
def test_overlap_is_symmetric_and_total_with_itself(one: list[Task], other: list[Task]) -> None:
    assert bool(find_overlap(one, other)) == bool(find_overlap(other, one))
    assert bool(find_overlap(one, one)) == bool(one)
