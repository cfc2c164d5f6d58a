"""Requests and replies of `POST /v1/completions` with token ids on both sides. Pure.

Protocol: vLLM's completions API, `prompt=[ids]` with `return_token_ids` and `logprobs`. A server that is started with
`--logprobs-mode processed_logprobs` gives the log-probabilities of the distribution that it samples from, with
temperature and nucleus applied, and untempered ones for greedy requests, as `Completion.logprobs` requires.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finqa_cli.types import GenerateRequest
from finqa_plugins.engines._http.json_documents import BadReplyError, first_choice
from finqa_plugins.engines._http.usage import Usage, read_usage

IMPOSSIBLE = -9999.0
"""What vLLM writes for minus infinity, which JSON cannot represent."""

ROUNDING = 1e-3
"""Nats above 0 that a log-probability may reach by rounding in low precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReply:
    """One completion.

    Attributes:
        token_ids: [Lc], with the stop id if it ended with one.
        logprobs: [Lc] nats.
        stop: `stop` or `length`.
        usage: Tokens of prompt and completion.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: str
    usage: Usage


def completion_body(request: GenerateRequest, *, model: str, max_tokens: int, seeded: bool = True) -> dict[str, Any]:
    """The JSON body of a request.

    It sets every parameter that the model's generation_config could change (vLLM reads that file), so that only
    temperature, nucleus and seed matter. Otherwise the log-probabilities would be those of another distribution.

    Args:
        request: The request.
        model: Name of model or adapter on the server.
        max_tokens: Longest completion, which replaces the request's limit.
        seeded: Send the request's seed. Without it the server draws from its own generator.
    """
    sampling = request.sampling
    seed = {"seed": sampling.seed} if seeded else {}
    return {
        **seed,
        "model": model,
        "prompt": list(request.token_ids),
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": 1.0 if sampling.temperature <= 0 else sampling.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,  # the stop ids alone end it
        "stop_token_ids": list(sampling.stop_ids),
        "include_stop_str_in_output": True,
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def read_completion(document: Mapping[str, Any], request: GenerateRequest, *, max_tokens: int) -> TokenReply:
    """Reads the first choice of a reply.

    Raises:
        BadReplyError: Ids or log-probabilities are missing, do not match or are invalid numbers, or it is
            not a completion of this prompt under these stop ids.
    """
    choice = first_choice(document)
    token_ids = _ids(choice.get("token_ids"), "token ids (choices[0].token_ids; the server must take return_token_ids)")
    echoed = choice.get("prompt_token_ids")
    if echoed is not None and not (isinstance(echoed, list) and tuple(echoed) == request.token_ids):
        raise BadReplyError("the server changed the prompt's token ids")
    stop = choice.get("finish_reason")
    if stop not in ("stop", "length"):
        raise BadReplyError(f"the generation ended by {str(stop)[:40]!r}, not by a stop id or the limit")
    if not token_ids or len(token_ids) > max_tokens:
        raise BadReplyError(f"{len(token_ids)} token ids came, but 1 to {max_tokens} were requested")
    if stop == "stop" and token_ids[-1] not in request.sampling.stop_ids:
        raise BadReplyError("the completion did not end with a stop id, or the stop id is missing")
    return TokenReply(
        token_ids=token_ids, logprobs=_logprobs(choice, len(token_ids)), stop=stop, usage=read_usage(document)
    )


def read_first_place(document: Mapping[str, Any]) -> dict[str, float]:
    """Token -> log-probability of the most likely tokens at the first place of a completion.

    Raises:
        BadReplyError: There are none.
    """
    logprobs = first_choice(document).get("logprobs")
    places = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
    place = places[0] if isinstance(places, list) and places else None
    if not isinstance(place, dict) or not place:
        raise BadReplyError("the reply has no choices[0].logprobs.top_logprobs")
    return {str(token): _logprob(value) for token, value in place.items()}


def _ids(given: object, what: str) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise BadReplyError(f"the reply has no {what}")
    if not (set(map(type, given)) <= {int} and min(given, default=0) >= 0):  # a bool is of another type
        raise BadReplyError(f"the reply contains an invalid token id in its {what}")
    return tuple(given)


def _logprobs(choice: Mapping[str, Any], count: int) -> tuple[float, ...]:
    logprobs = choice.get("logprobs")
    given = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(given, list):
        raise BadReplyError("the reply has no log-probabilities (choices[0].logprobs.token_logprobs)")
    if len(given) != count:
        raise BadReplyError(f"the reply has {len(given)} log-probabilities for {count} tokens")
    plain = set(map(type, given)) <= {float, int} and all(map(math.isfinite, given))  # nearly always: much faster
    if plain and min(given, default=0) > IMPOSSIBLE and max(given, default=0) <= ROUNDING:
        return tuple(map(float, given))
    return tuple(map(_logprob, given))


def _logprob(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not IMPOSSIBLE < value <= ROUNDING:
        raise BadReplyError(f"{repr(value)[:40]} is not a valid log-probability")
    return float(value)
