"""Token usage of requests and episodes, and its cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict, Field

log = structlog.get_logger(__name__)

KEPT_EPISODES = 10_000
"""Episodes in the ledger, the latest ones. It is far more than are played at once, and bounds memory in long runs."""

MOST_TOKENS = 10**9
"""Largest count of tokens that one request can report; a larger one counts as missing."""

REPORT_EVERY = 100
"""Requests between two log lines with the total usage."""


CHARACTERS_PER_TOKEN = 4
"""Estimates the tokens of a text that no server has counted."""


def estimate_tokens(characters: int) -> int:
    """Tokens of a text with this number of characters, at least 1."""
    return max(1, characters // CHARACTERS_PER_TOKEN)


class Price(BaseModel):
    """Price of one model in US dollars per million tokens; the last two default to the price of `input`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    cache_write: float | None = Field(default=None, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Usage of one or several requests.

    Attributes:
        requests: Answered requests.
        prompt_tokens: Including the cached ones.
        cached_tokens: Tokens of the prompts that the server had from earlier requests.
        written_tokens: Tokens of the prompts that the server wrote into its cache, where that has a price.
        completion_tokens: Including those of reasoning that is not shown.
        unmetered: Requests whose reply did not report its usage; their tokens are estimated from the length of texts.
        retries: Requests that were sent again after a temporary failure.
        charged_usd: Cost as the server itself reports it (OpenRouter); None if it does not.
        replayed: Requests that were not sent, because their replies are recorded. Their tokens count, their cost is 0.
        oldest_reply_s: Largest age of such a reply, in seconds.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0
    written_tokens: int = 0
    retries: int = 0
    charged_usd: float | None = None
    replayed: int = 0
    oldest_reply_s: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        """Adds two usages."""
        return Usage(
            requests=self.requests + other.requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            unmetered=self.unmetered + other.unmetered,
            written_tokens=self.written_tokens + other.written_tokens,
            retries=self.retries + other.retries,
            charged_usd=_added(self.charged_usd, other.charged_usd),
            replayed=self.replayed + other.replayed,
            oldest_reply_s=max(self.oldest_reply_s, other.oldest_reply_s),
        )

    @property
    def tokens(self) -> int:
        """Tokens of prompts and completions."""
        return self.prompt_tokens + self.completion_tokens

    def cost_usd(self, price: Price | None) -> float | None:
        """Cost in US dollars: by the price, else as the server reports it; None without either."""
        if price is None:
            return self.charged_usd
        cached = price.input if price.cached_input is None else price.cached_input
        write = price.input if price.cache_write is None else price.cache_write
        fresh = self.prompt_tokens - self.cached_tokens - self.written_tokens
        prompts = fresh * price.input + self.cached_tokens * cached + self.written_tokens * write
        return (prompts + self.completion_tokens * price.output) / 1e6

    def estimated(self, prompt: int, completion: int) -> Usage:
        """The usage with estimates where the server reported none."""
        return replace(self, prompt_tokens=prompt, completion_tokens=completion) if self.unmetered else self


def read_usage(document: Mapping[str, Any]) -> Usage:
    """The `usage` of a reply; a missing or invalid one counts as unmetered."""
    found = document.get("usage")
    usage: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if not prompt or completion is None:  # no request has an empty prompt
        return Usage(requests=1, unmetered=1)
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    charged = _amount(usage.get("cost"))
    return Usage(
        requests=1,
        prompt_tokens=prompt,
        cached_tokens=min(cached or 0, prompt),
        completion_tokens=completion,
        charged_usd=charged,
    )


class Ledger:
    """Usage of each of the latest episodes, and of all together.

    Attributes:
        adapted: How requests were adapted to the server.
    """

    def __init__(self, price: Price | None, *, model: str, reports: bool = True, charged: bool = False) -> None:
        """Begins to count.

        Args:
            price: Price of the model's tokens.
            model: Name of the model in the log.
            reports: Write the total usage to the log every `REPORT_EVERY` requests.
            charged: The server reports the cost of each request itself.
        """
        self.price = price
        self._model = model
        self._charged = charged
        self._reports = reports
        self._episodes: OrderedDict[str, Usage] = OrderedDict()
        self._replayed: dict[str, Usage] = {}
        self.total = Usage()
        self.adapted: list[str] = []

    def add(self, key: str, usage: Usage) -> None:
        """Records the usage of the request `key`; logs the total every `REPORT_EVERY` requests."""
        self._note(key, usage)
        if self._reports and self.total.requests % REPORT_EVERY == 0:
            self.report("tokens used so far")

    def _note(self, key: str, usage: Usage) -> None:
        episode = key.rpartition("#")[0]
        self._episodes[episode] = self._episodes.get(episode, Usage()) + usage
        self._episodes.move_to_end(episode)
        if len(self._episodes) > KEPT_EPISODES:
            forgotten, _ = self._episodes.popitem(last=False)
            self._replayed.pop(forgotten, None)
        self.total += usage

    def retried(self, key: str) -> None:
        """Records that the request `key` is sent again."""
        self._note(key, Usage(retries=1))

    def replayed(self, key: str, usage: Usage, age_s: float) -> None:
        """Records a reply that was not requested: its tokens, which cost nothing now, and its age in seconds."""
        found = replace(usage, charged_usd=None, replayed=1, oldest_reply_s=age_s)
        episode = key.rpartition("#")[0]
        self._note(key, Usage())
        self._replayed[episode] = self._replayed.get(episode, Usage()) + found

    def report(self, event: str) -> None:
        """Logs the total usage."""
        # Log: `tokens used so far` every some requests, and `tokens used in all` at the end of a run with engine
        # `openai`.
        log.info(event, model=self._model, **self.running_total())

    def running_total(self) -> dict[str, Any]:
        """Total usage as JSON values."""
        return self._facts(self.total)

    def knows(self, episode: str) -> bool:
        """Whether usage of the episode is recorded."""
        return episode in self._episodes

    def episode(self, episode: str) -> dict[str, Any]:
        """What one episode used, restarts included; `cost_usd` is None when the model has no price."""
        return self._facts(self._episodes.get(episode, Usage()), self._replayed.get(episode))

    def _facts(self, usage: Usage, replayed: Usage | None = None) -> dict[str, Any]:
        cost = usage.cost_usd(self.price)
        if cost is None and self._charged and not usage.requests:
            cost = 0.0
        if replayed is not None and not usage.requests and self.price is None:
            cost = 0.0  # nothing was sent
        facts = asdict(usage if replayed is None else usage + replayed)
        del facts["charged_usd"]
        if replayed is None:
            del facts["replayed"], facts["oldest_reply_s"]
        if not usage.written_tokens:
            del facts["written_tokens"]
        adapted = {"adapted": list(self.adapted)} if self.adapted else {}
        return {**facts, **adapted, "cost_usd": None if cost is None else round(cost, 6)}


def _added(first: float | None, second: float | None) -> float | None:
    return (first or 0.0) + (second or 0.0) if (first, second) != (None, None) else None


def _amount(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < MOST_TOKENS else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None
