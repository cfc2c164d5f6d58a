"""Calls of a tokenizer's backend give what the tokenizer itself gives."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from chat_families import CASES, CONTROL_STRINGS, codec_of

from finqa_plugins.codecs.loading import plain_coding

TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from([*CONTROL_STRINGS, "  ", "\n\n", "e\u0301", " ."])
).map("".join)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, data=st.data())
def test_texts_and_ids_are_those_of_the_tokenizer(name: str, text: str, data: st.DataObject) -> None:
    tokenizer = copy.deepcopy(codec_of(name)._tokenizer)
    tokenizer.backend_tokenizer.enable_truncation(3)  # as a tokenizer.json may have them
    tokenizer.backend_tokenizer.enable_padding(length=50)
    encode, decode = plain_coding(tokenizer)
    ids = encode(text)
    some = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=20))
    read = [decode(ids), decode(some)]
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert read == [
        tokenizer.decode(given, skip_special_tokens=False, clean_up_tokenization_spaces=False) for given in (ids, some)
    ]


def test_a_tokenizer_without_a_backend_is_called_itself() -> None:
    class Slow:
        is_fast = False

        def encode(self, text: str, *, add_special_tokens: bool, verbose: bool) -> list[int]:
            return [] if add_special_tokens or verbose else [len(text)]

        def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
            return "" if skip_special_tokens or clean_up_tokenization_spaces else f"{ids}"

    encode, decode = plain_coding(Slow())
    assert (encode("abc"), decode([3])) == ([3], "[3]")
