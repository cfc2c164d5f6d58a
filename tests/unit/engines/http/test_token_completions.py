"""Requests of token ids and what is read of replies: for all that a server sends, a completion or a BadReplyError."""

from __future__ import annotations

import copy
from typing import Any

from fixtures.token_server import BASE, TokenServerFixture
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.types import GenerateRequest, Sampling
from finqa_plugins.engines._http.completions import completion_body, read_completion, read_first_place
from finqa_plugins.engines._http.json_documents import BadReplyError, base_model, read_listing

REQUEST = GenerateRequest(
    key="a#0", token_ids=(1, 2, 3), sampling=Sampling(max_tokens=5, stop_ids=(9,), seed=2**63 - 1)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.just(-(10**400)) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def document() -> dict[str, Any]:
    server = TokenServerFixture("", "")
    return server._document(completion_body(REQUEST, model=BASE, max_tokens=5), "", 5)


def test_a_sound_reply_is_read_whole() -> None:
    reply = read_completion(document(), REQUEST, max_tokens=5)
    assert len(reply.token_ids) == len(reply.logprobs) == 5 and reply.stop == "length"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 5)


def test_greedy_requests_keep_the_whole_distribution() -> None:
    greedy = GenerateRequest(key="", token_ids=(1,), sampling=Sampling(temperature=0.0, top_p=0.5))
    assert completion_body(greedy, model="m", max_tokens=1)["top_p"] == 1.0
    body = completion_body(REQUEST, model="m", max_tokens=1)
    assert body["seed"] == 2**63 - 1 and body["stop_token_ids"] == [9] and body["prompt"] == [1, 2, 3]


@given(st.data())
def test_any_reply_is_a_completion_or_told(data: st.DataObject) -> None:
    sent = copy.deepcopy(document())
    choice = sent["choices"][0]
    places: list[tuple[Any, Any]] = [
        (sent, "choices"),
        (sent, "usage"),
        (choice, "token_ids"),
        (choice, "prompt_token_ids"),
        (choice, "finish_reason"),
        (choice, "logprobs"),
        (choice["logprobs"], "token_logprobs"),
        (choice["logprobs"], "top_logprobs"),
        (choice["logprobs"]["token_logprobs"], data.draw(st.integers(0, 4))),
        (choice["token_ids"], data.draw(st.integers(0, 4))),
    ]
    holder, name = data.draw(st.sampled_from(places))
    holder[name] = data.draw(JSON)
    try:
        reply = read_completion(sent, REQUEST, max_tokens=5)
        assert len(reply.token_ids) == len(reply.logprobs) and all(-9999 < one < 0.01 for one in reply.logprobs)
    except BadReplyError as error:
        assert str(error)
    try:
        assert read_first_place(sent)
    except BadReplyError as error:
        assert str(error)


@given(JSON, st.lists(st.dictionaries(st.sampled_from(["id", "root", "parent", "max_model_len"]), JSON), max_size=3))
def test_any_listing_is_read(whole: Any, cards: list[Any]) -> None:
    read_listing(whole if isinstance(whole, dict) else None)
    found = read_listing({"data": cards})
    assert found is not None and all(card.max_context >= 0 for card in found)


def test_adapters_are_no_base_models() -> None:
    cards = read_listing({"data": [{"id": "a", "root": "x"}, {"id": "lora", "root": "y", "parent": "a"}]})
    assert cards is not None and base_model(cards, name=None, folder="y", url="").name == "a"
