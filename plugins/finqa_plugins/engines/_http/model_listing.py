"""What a server lists under `/models`, and which of it is the run's base model. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_plugins.engines._http.faults import NAME_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One served model.

    Attributes:
        name: How requests call it.
        root: What it was loaded from (vLLM, SGLang), else empty.
        parent: Of an adapter: its base model; empty for a base model.
        max_context: Longest prompt plus completion in tokens; 0 where the server does not say.
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
        f"Which model of the server at {url} is {folder!r} cannot be told. It serves: {listed}.", remedy=NAME_MODEL
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
