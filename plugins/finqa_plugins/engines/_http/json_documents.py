"""JSON objects of requests and replies, and the models that a server lists under `/models`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError
from finqa_plugins.engines._http.refusals import NAME_MODEL


class BadReplyError(Exception):
    """The server answered something that is not a completion; the message states what."""


def parse_document(data: bytes) -> Mapping[str, Any]:
    """A JSON object.

    Raises:
        BadReplyError: `data` is not a JSON object.
    """
    try:
        try:
            document = from_json(data, allow_inf_nan=False)
        except ValueError:  # `json` accepts lone surrogates, and its errors state what is wrong
            document = parse_json(data, finite=True)
    except ValueError as error:
        raise BadReplyError(f"the reply is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise BadReplyError("the reply is not a JSON object")
    return document


def parse_events(data: bytes) -> Mapping[str, Any]:
    """The completion in server-sent events, for a server that streams although it was not asked to.

    Raises:
        BadReplyError: The events are no chat completion, or its end is missing.
    """
    message: dict[str, Any] = {"role": "assistant"}
    calls: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    finish, ended = None, False
    for line in data.splitlines():
        payload = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or payload == b"[DONE]":
            ended = ended or payload == b"[DONE]"
            continue
        event = parse_document(payload)
        if event.get("error"):
            return event
        whole |= {name: value for name, value in event.items() if name != "choices" and value is not None}
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict):
                _add_delta(message, calls, delta)
                finish = choice.get("finish_reason") or finish
    if finish is None or not ended:
        raise BadReplyError("the events of the reply end before the completion")
    if calls:
        message["tool_calls"] = [call for _, call in sorted(calls.items())]
    return {**whole, "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def _add_delta(message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if isinstance(value, str) and name != "role":
            message[name] = message.get(name, "") + value
    parts = delta.get("tool_calls")
    for place, part in enumerate(parts if isinstance(parts, list) else ()):
        given = part.get("function") if isinstance(part, dict) else None
        if isinstance(given, dict):
            number = part.get("index")
            call = calls.setdefault(number if isinstance(number, int) else place, {"function": {"arguments": ""}})
            call["function"]["name"] = call["function"].get("name") or given.get("name")
            call["function"]["arguments"] += str(given.get("arguments") or "")


def write_document(document: Mapping[str, Any]) -> bytes:
    """The JSON of a request; for thousands of token ids in a fifth of the time that `json` takes."""
    try:
        return to_json(document)
    except ValueError:  # lone surrogates
        return json.dumps(document, allow_nan=False).encode()


def refuse_constant(name: str) -> NoReturn:
    """Raises ValueError for NaN and Infinity, which are not valid JSON; for `json.loads(parse_constant=...)`."""
    raise ValueError(f"{name} is not a JSON number")


def first_choice(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """`choices[0]`.

    Raises:
        BadReplyError: There is none, or its generation was interrupted.
    """
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise BadReplyError("the reply has no choices[0]")
    if choice.get("finish_reason") in ("error", "abort") or choice.get("error"):  # OpenRouter, vLLM and SGLang
        raise BadReplyError("the generation was interrupted")
    return choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One served model.

    Attributes:
        name: Name of the model in requests.
        root: What it was loaded from (vLLM, SGLang), else empty.
        parent: Base model of an adapter; empty for a base model.
        max_context: Longest prompt plus completion in tokens; 0 if the server does not report it.
    """

    name: str
    root: str = ""
    parent: str = ""
    max_context: int = 0


def read_listing(document: Mapping[str, Any] | None) -> tuple[ModelCard, ...] | None:
    """The models by name; None for a reply that lists none.

    OpenAI's form is `{"data": [{"id"}]}`; vLLM adds `root`, `parent` and `max_model_len`.
    """
    listed = (document or {}).get("data")
    if not isinstance(listed, list):
        return None
    cards = {one["id"]: _card(one) for one in listed if isinstance(one, dict) and isinstance(one.get("id"), str)}
    return tuple(card for _, card in sorted(cards.items()))


def base_model(cards: Sequence[ModelCard], *, name: str | None, folder: str, url: str) -> ModelCard:
    """The card of the run's base model: the named one, the one loaded from `folder`, or the only one.

    Raises:
        ConfigError: None or several fit; the message lists them.
    """
    bases = [card for card in cards if not card.parent]
    listed = ", ".join(card.name for card in bases[:20]) or "no model"
    if name is not None:
        if chosen := next((card for card in bases if card.name == name), None):
            return chosen
        raise ConfigError(f"The server at {url} has no base model {name!r}. It serves: {listed}.", remedy=NAME_MODEL)
    for card in bases:
        if folder and (folder in (card.name, card.root) or _same_folder(folder, card.root)):
            return card
    if len(bases) == 1:
        return bases[0]
    raise ConfigError(
        f"Which model of the server at {url} is {folder!r} is unknown. It serves: {listed}.", remedy=NAME_MODEL
    )


def _card(one: Mapping[str, Any]) -> ModelCard:
    limit = one.get("max_model_len")
    return ModelCard(
        name=one["id"],
        root=str(one.get("root") or ""),
        parent=str(one.get("parent") or ""),
        max_context=limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else 0,
    )


def _same_folder(folder: str, root: str) -> bool:
    return bool(root) and Path(folder).is_dir() and Path(folder).resolve() == Path(root).resolve()
