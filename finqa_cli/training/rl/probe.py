"""Check after a weight sync that the engine serves the weights that the learner published.

In each look, the engine generates texts for some tasks, and continuations of each text from several positions. The
learner scores all of them, and the log-probabilities are compared. They differ by rounding, whose size depends on
model, kernels and precision. If the size is not known, it is measured on the first version of a run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from finqa_cli.contracts import ChatCodec, Learner, TokenEngine
from finqa_cli.errors import EngineError
from finqa_cli.rollout.seeds import derive
from finqa_cli.training.rl.device_turns import turn_of_learner
from finqa_cli.training.training_loop import RunContext
from finqa_cli.types import Completion, GenerateRequest, Message, PolicyVersion, Prompt, Sample, Sampling, Task
from finqa_cli.types.run_events import INLINE, RunEvent

OUTLIERS = 0.05
"""Share of the tokens, those with the largest differences, that the typical difference leaves out."""

MULTIPLE = 2.0
"""The tolerance of the typical difference is this multiple of the measured difference."""

FLOOR, CEILING = 0.04, 0.2
"""Lower and upper limit of the tolerance of the typical difference, in nats. Published differences between vLLM and a
trainer in bfloat16 are 0.031 to 0.041 nats RMS (ServiceNow/Fast-LLM, pull request 525). A difference above the upper
limit is not rounding."""

LARGEST = 3.0
"""Largest difference of any token in nats, if the tolerance is measured: a factor of 20 in probability. In bfloat16,
single unlikely tokens differ by more than 1 nat."""

TEXTS, TEXT_TOKENS = 4, 64
"""Texts of a look, for different tasks if there are enough, and most tokens of each text."""

POSITIONS, CONTINUED_TOKENS = 2, 16
"""Positions from which a text is continued, and most tokens of each continuation."""

LONGEST_PROMPT = 1024
"""Tokens at the end of the opening that are kept, so that a look is cheap for long tasks too."""

LOOK_TRIES = 3
"""Tries of one look. A try fails if no replica answers all of its requests, because replicas leave and join."""

CALIBRATION_LOOKS = 4
"""Looks at the first version whose tokens together determine the tolerance."""


class ProbeTolerance(RunEvent):
    """At the start of a training run: the difference of engine and learner that rounding causes was measured."""

    event: Literal["probe_tolerance"]
    fields: Annotated[Tolerance, INLINE]
    tokens: int
    """Number of tokens that were compared."""


class ProbeDiffers(RunEvent):
    """An engine replica differs from the learner by more than the tolerance. After the second look the run ends."""

    event: Literal["probe_differs"]
    fields: Annotated[Difference, INLINE]
    version: int
    """Number of the policy."""
    look: int
    """Number of the comparison, 1 or 2."""
    replica: int
    """Number of the engine replica."""
    typical: float | None
    """Mean of the absolute differences without outliers, in nats; null if it is not finite."""
    largest: float | None
    """Largest absolute difference, in nats; null if it is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of two rows of log-probabilities in nats; infinite if values are not finite.

    Attributes:
        typical: Mean of the absolute differences without the largest ones; their share `OUTLIERS`, at least one, is
            left out.
        largest: The largest absolute difference.
        tokens: Number of tokens that were compared.
    """

    typical: float
    largest: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Differences that rounding can cause, in nats.

    Attributes:
        typical: Upper bound of the typical difference.
        largest: Upper bound of the largest difference.
        source: Description of the origin of the values, for messages.
    """

    typical: float
    largest: float
    source: str

    @classmethod
    def fixed(cls, nats: float) -> Tolerance:
        """Return a tolerance by which no token may differ by more than `nats`."""
        return cls(typical=nats, largest=nats, source="engine.options.probe_tolerance, or float32 on both sides")

    @classmethod
    def measured(cls, found: Difference, version: int) -> Tolerance:
        """Return a tolerance of `MULTIPLE` times the difference found on a version, within `FLOOR` and `CEILING`."""
        typical = min(max(MULTIPLE * found.typical, FLOOR), CEILING)
        source = f"measured on version {version}, which differed by {found.typical:.3g}"
        return cls(typical=typical, largest=LARGEST, source=source)

    def explains(self, found: Difference) -> bool:
        """Whether rounding alone may cause the difference."""
        return found.typical <= self.typical and found.largest <= self.largest


WIDEST = Tolerance(typical=CEILING, largest=LARGEST, source="the largest difference that rounding explains")


def compare(left: Sequence[float], right: Sequence[float]) -> Difference:
    """Return the difference of two rows of the same length [N], which is at least 1."""
    gaps = sorted(_gap(one, other) for one, other in zip(left, right, strict=True))
    kept = gaps[: max(1, len(gaps) - max(1, math.ceil(OUTLIERS * len(gaps))))]
    return Difference(typical=math.fsum(kept) / len(kept), largest=gaps[-1], tokens=len(gaps))


def _gap(left: float, right: float) -> float:
    gap = abs(left - right)
    return gap if math.isfinite(gap) else math.inf


@dataclass(frozen=True, slots=True)
class Rows:
    """Log-probabilities [N] of the tokens that a replica sampled in a look, by the replica and by the learner."""

    sampled: Sequence[float]
    scored: Sequence[float]


Played = dict[int, list[tuple[GenerateRequest, Completion]]]
"""Requests and completions, by number of the replica; only replicas that answered all requests."""


class Probe:
    """Compares an engine with the learner after each new policy version.

    Requests depend on the seed of the run, the version and the number of the look, so a resumed run makes the same
    requests. Their keys name no episode.

    Args:
        context: Common parts of the run; events record the tolerance and every difference above it.
        engine: The engine; it is not probed if its `probe_tolerance` is None.
        learner: Learner with the weights of the version that is probed.
        codec: Codec of the engine's model.
        tasks: Training tasks, at least one.
        state: State in the checkpoint that is resumed; it contains the tolerance that was measured at the start.
    """

    def __init__(
        self,
        context: RunContext,
        engine: TokenEngine,
        learner: Learner,
        codec: ChatCodec,
        tasks: Sequence[Task],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._engine = engine
        self._learner = learner
        self._codec = codec
        self._tasks = tasks
        self._settings = context.settings
        self._folder = context.folder
        self._tolerance = self._known(state)

    async def begin(self, policy: PolicyVersion) -> None:
        """Check that the engine serves the first version of a run, and measure the tolerance on it if it is not known.

        Raises:
            EngineError: See `prove`: the engine has another model than the learner.
        """
        await self.prove(policy)
        if self._tolerance is WIDEST:
            looks = [await self._look(policy, 2 + look) for look in range(CALIBRATION_LOOKS)]
            rows = [row for look in looks for row in look.values()]
            found = compare([x for row in rows for x in row.sampled], [x for row in rows for x in row.scored])
            self._tolerance = Tolerance.measured(found, policy.number)
            self._folder.event("probe_tolerance", **asdict(self._tolerance), tokens=found.tokens)

    @property
    def state(self) -> dict[str, Any] | None:
        """State for a checkpoint: the tolerance if it was measured; None otherwise."""
        tolerance = self._tolerance
        return asdict(tolerance) if tolerance is not None and self._nats() == "measured" else None

    async def prove(self, policy: PolicyVersion) -> dict[str, float]:
        """Compare all replicas in service with the learner. If one differs too much, compare again with other texts.

        Returns:
            `probe_difference` and `probe_largest`, the largest `typical` and `largest` of all replicas in nats (see
            `Difference`), and `probe_looks`; empty for an engine that is not probed.

        Raises:
            EngineError: A replica failed, serves another version, or differed by more than the tolerance both times.
        """
        if (tolerance := self._tolerance) is None:
            return {}
        for look in (1, 2):
            rows = await self._look(policy, look - 1)
            found = {replica: compare(row.sampled, row.scored) for replica, row in rows.items()}
            wrong = [replica for replica, difference in found.items() if not tolerance.explains(difference)]
            if not wrong:
                return {
                    "probe_difference": max(difference.typical for difference in found.values()),
                    "probe_largest": max(difference.largest for difference in found.values()),
                    "probe_looks": look,
                }
            for replica in wrong:
                differs = {
                    name: value if math.isfinite(value) else None for name, value in asdict(found[replica]).items()
                }
                facts = {"version": policy.number, "look": look, "replica": replica}
                self._folder.event("probe_differs", **facts, **differs)
        raise self._error(policy, wrong[0], found[wrong[0]], tolerance)

    def _nats(self) -> float | str | None:
        return self._engine.probe_tolerance

    def _known(self, state: Mapping[str, Any] | None) -> Tolerance | None:
        match self._nats():
            case None:
                return None
            case "measured":
                return Tolerance(**state) if state else WIDEST
            case nats:
                return Tolerance.fixed(float(nats))

    async def _look(self, policy: PolicyVersion, number: int) -> dict[int, Rows]:
        """Return the rows by number of the replica, for replicas that answered all requests of the look."""
        first = self._derive(policy, number, "task")
        tasks = [self._tasks[(first + text) % len(self._tasks)] for text in range(TEXTS)]
        openings = [self._opening(task) for task in tasks]
        beginnings = [self._request(one, TEXT_TOKENS, policy, number, text) for text, one in enumerate(openings)]
        for _ in range(LOOK_TRIES):
            if played := await self._play(policy, number, beginnings):
                break
        else:
            raise EngineError(
                f"No replica answered all requests of the probe of policy version {policy.number}, in {LOOK_TRIES} "
                "tries.",
                remedy=self._remedy,
            )
        samples = [_sample(request, completion) for pairs in played.values() for request, completion in pairs]
        async with turn_of_learner(self._engine, self._learner):
            scores = iter(await asyncio.to_thread(self._learner.logprobs, samples))
        return {
            replica: Rows(
                [logprob for _, completion in pairs for logprob in completion.logprobs],
                [float(score) for request, _ in pairs for score in next(scores)[len(request.token_ids) :]],
            )
            for replica, pairs in played.items()
        }

    async def _play(self, policy: PolicyVersion, number: int, beginnings: Sequence[GenerateRequest]) -> Played:
        """Generate the texts and their continuations."""
        texts = await self._complete(policy, beginnings)
        if not texts:
            return {}
        prefixes = [
            request.token_ids + completion.token_ids[: len(completion.token_ids) * place // (POSITIONS + 1)]
            for request, completion in texts[min(texts)]
            for place in range(1, POSITIONS + 1)
        ]
        continued = await self._complete(
            policy,
            [self._request(one, CONTINUED_TOKENS, policy, number, TEXTS + index) for index, one in enumerate(prefixes)],
        )
        return {replica: texts[replica] + continued[replica] for replica in sorted(texts.keys() & continued.keys())}

    async def _complete(self, policy: PolicyVersion, requests: Sequence[GenerateRequest]) -> Played:
        answers = await asyncio.gather(*(self._engine.probe(request) for request in requests))
        for answer in answers:
            for replica, completion in answer.items():
                self._check_form(replica, completion, policy)
        complete = set.intersection(*(set(answer) for answer in answers))
        return {
            replica: [(request, answer[replica]) for request, answer in zip(requests, answers, strict=True)]
            for replica in complete
        }

    def _opening(self, task: Task) -> tuple[int, ...]:
        """Return the ids of a task's opening. If it is long, only its end is kept, where the model's turn begins."""
        opening = self._codec.opening(Prompt(messages=(Message(role="user", content=task.prompt),), tools=()))
        room = self._engine.max_context - TEXT_TOKENS - CONTINUED_TOKENS
        return opening[-max(1, min(LONGEST_PROMPT, room)) :]

    def _request(self, token_ids: tuple[int, ...], most: int, policy: PolicyVersion, *seed: int) -> GenerateRequest:
        """Return a request for samples of the learner's distribution: the run's temperature, and all tokens."""
        sampling = Sampling(
            temperature=self._settings.generation.temperature,
            max_tokens=most,
            stop_ids=self._codec.stop_ids,
            seed=self._derive(policy, *seed),
        )
        return GenerateRequest(key=f"probe#{seed[-1]:04d}", token_ids=token_ids, sampling=sampling)

    def _derive(self, policy: PolicyVersion, *parts: str | int) -> int:
        return derive(self._settings.train.seed, "probe", policy.number, *parts)

    def _check_form(self, replica: int, completion: Completion, policy: PolicyVersion) -> None:
        if completion.policy_version != policy.number:
            raise EngineError(
                f"Replica {replica} serves policy version {completion.policy_version} after version {policy.number} "
                "was loaded.",
                remedy=self._remedy,
            )
        tokens, logprobs = len(completion.token_ids), len(completion.logprobs)
        if not tokens or tokens != logprobs:
            raise EngineError(
                f"Replica {replica} answered the probe of policy version {policy.number} with {tokens} tokens and "
                f"{logprobs} log-probabilities.",
                remedy=self._remedy,
            )

    def _error(self, policy: PolicyVersion, replica: int, found: Difference, tolerance: Tolerance) -> EngineError:
        return EngineError(
            f"Replica {replica} reports that it serves policy version {policy.number}, but twice its log-probabilities "
            f"differed from the learner's: the second time by {found.typical:.3g} nats a token and up to "
            f"{found.largest:.3g}, over {found.tokens} tokens. Rounding explains {tolerance.typical:.3g} and up to "
            f"{tolerance.largest:.3g} ({tolerance.source}). It serves other weights or computes differently.",
            remedy=self._remedy,
        )

    @property
    def _remedy(self) -> str:
        run = self._folder.path
        return (
            f"finqa train --resume {run}, which loads the version again; if that fails too, compare model, "
            f"revision and dtype of the engine with the learner's, and see the engine's log in {run / 'logs'}"
        )


def _sample(request: GenerateRequest, completion: Completion) -> Sample:
    prompt, length = request.token_ids, len(completion.token_ids)
    nothing = (0.0,) * (len(prompt) + length)
    return Sample(
        token_ids=prompt + completion.token_ids,
        loss_mask=(False,) * len(prompt) + (True,) * length,
        logprobs=nothing,
        advantages=nothing,
    )
