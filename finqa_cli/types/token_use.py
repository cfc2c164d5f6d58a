"""Tokens and cost of attempts: the sampled ids if they are known, else what the server reported, else unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUse:
    """Tokens of one or several attempts.

    Attributes:
        prompt: Prompt tokens. With token ids each one counts once; a server counts the whole prompt of every request.
        sampled: Sampled tokens, including reasoning that the server does not show.
        cached: Prompt tokens that the server had from earlier requests.
        cost_usd: Price of the tokens in US dollars; None if the model has no known price or a reply had no usage.
        retries: Requests that were sent again.
        missing: Attempts whose tokens are unknown; the figures are without them.
        estimated: Whether some tokens are an estimate from the length of the text.
        replayed: Requests that were not sent, because their replies are recorded.
        oldest_reply_s: Largest age of such a reply in seconds.
    """

    prompt: int = 0
    sampled: int = 0
    cached: int = 0
    cost_usd: float | None = None
    retries: int = 0
    missing: int = 0
    estimated: bool = False
    replayed: int = 0
    oldest_reply_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and sampled tokens."""
        return self.prompt + self.sampled

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a JSON-ready mapping."""
        return {
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "sampled_tokens": self.sampled,
            "cost_usd": self.cost_usd,
            "retries": self.retries,
            "missing": self.missing,
            "estimated": self.estimated,
            **({"replayed": self.replayed, "oldest_reply_s": self.oldest_reply_s} if self.replayed else {}),
        }

    @classmethod
    def from_dict(cls, facts: object) -> TokenUse | None:
        """Return the use that `to_dict` wrote; None for anything else."""
        if not isinstance(facts, Mapping) or not {"prompt_tokens", "sampled_tokens"} <= facts.keys():
            return None
        return cls(
            prompt=_count(facts["prompt_tokens"]),
            sampled=_count(facts["sampled_tokens"]),
            cached=_count(facts.get("cached_tokens")),
            cost_usd=_amount(facts.get("cost_usd")),
            retries=_count(facts.get("retries")),
            missing=_count(facts.get("missing")),
            estimated=facts.get("estimated") is True,
            replayed=_count(facts.get("replayed")),
            oldest_reply_s=_amount(facts.get("oldest_reply_s")) or 0.0,
        )

    def text(self) -> str:
        """Return the figures as the last line of a command shows them."""
        cached = f" ({short_count(self.cached)} cached)" if self.cached else ""
        about = "about " if self.estimated else ""
        parts = [f"{about}{short_count(self.prompt)} prompt{cached} + {short_count(self.sampled)} sampled tokens"]
        if self.cost_usd is not None:
            parts.append(dollars(self.cost_usd))
        if self.retries:
            parts.append(f"{self.retries} {'retry' if self.retries == 1 else 'retries'}")
        if self.replayed:
            age = self.oldest_reply_s / 3600
            parts.append(
                f"{self.replayed} recorded {'reply' if self.replayed == 1 else 'replies'} up to {age:.1f} h old"
            )
        if self.missing:
            parts.append(f"{self.missing} {'episode' if self.missing == 1 else 'episodes'} of unknown use")
        return ", ".join(parts)


def use_of(turns: Iterable[tuple[int, int]], metadata: Mapping[str, Any]) -> TokenUse | None:
    """Return what an attempt used; None if it is unknown, which is not 0.

    Args:
        turns: Prompt and sampled tokens of each turn by its token ids; 0 without ids.
        metadata: Metadata of the attempt; `usage` contains the figures of `Engine.usage`.
    """
    usage = metadata.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    cost, retries = _amount(usage.get("cost_usd")), _count(usage.get("retries"))
    prompt = sampled = 0
    for given, made in turns:
        prompt, sampled = prompt + given, sampled + made
    if prompt or sampled:
        cached = min(_count(usage.get("cached_tokens")), prompt)
        return TokenUse(prompt=prompt, sampled=sampled, cached=cached, cost_usd=cost, retries=retries)
    prompt, sampled = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if not prompt and not sampled:
        return None
    return TokenUse(
        prompt=prompt,
        sampled=sampled,
        cached=min(_count(usage.get("cached_tokens")), prompt),
        cost_usd=cost,
        retries=retries,
        estimated=_count(usage.get("unmetered")) > 0,
        replayed=_count(usage.get("replayed")),
        oldest_reply_s=_amount(usage.get("oldest_reply_s")) or 0.0,
    )


def recorded_use(record: Mapping[str, Any]) -> TokenUse | None:
    """Return what a recorded attempt used; see `use_of`.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is not the record of an attempt.
    """
    turns = ((int(turn["prompt_tokens"] or 0), int(turn["completion_tokens"] or 0)) for turn in record["turns"])
    return use_of(turns, record.get("metadata") or {})


def total_use(uses: Iterable[TokenUse | None]) -> TokenUse | None:
    """Return the sum of several attempts; attempts of unknown use count as `missing`. None if nothing is known."""
    known: list[TokenUse] = []
    unknown = 0
    for use in uses:
        if use is None:
            unknown += 1
        else:
            known.append(use)
    if not known:
        return None
    costs = [use.cost_usd for use in known if use.cost_usd is not None]
    return TokenUse(
        prompt=sum(use.prompt for use in known),
        sampled=sum(use.sampled for use in known),
        cached=sum(use.cached for use in known),
        cost_usd=sum(costs) if costs else None,
        retries=sum(use.retries for use in known),
        missing=unknown + sum(use.missing for use in known),
        estimated=any(use.estimated for use in known),
        replayed=sum(use.replayed for use in known),
        oldest_reply_s=max(use.oldest_reply_s for use in known),
    )


def short_count(number: int) -> str:
    """Return a number as people write it: `960`, `31k`, `1.2M`."""
    if number < 10_000:
        return f"{number:,}"
    return f"{number / 1000:.0f}k" if number < 999_500 else f"{number / 1e6:.1f}M"


def dollars(amount: float) -> str:
    """Return an amount in US dollars, with two digits for small ones."""
    return f"${amount:,.2f}" if amount >= 0.095 or amount == 0 else f"${amount:.2g}"


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _amount(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
