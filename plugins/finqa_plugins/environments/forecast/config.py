"""Options of the `forecast` environment."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

QuestionType = Literal[
    "pure_forecast", "event_detection", "multi_signal_reasoning", "macro_fundamental", "news_sentiment", "analysis"
]
Inputs = Literal["auto", "question_only", "question_fundamental", "question_news", "question_full"]
Profile = Literal["strict", "versatile"]
Share = Annotated[float, Field(ge=0, le=1)]


class ForecastConfig(BaseModel):
    """How replies are judged, how files are read, and which tasks are generated without files."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    profile: Profile = Field(
        default="strict",
        description="Rules of the scores; versatile: as published, including their errors; strict: without the errors",
    )
    reward: Literal["score", "rlcr"] = Field(
        default="score",
        description="Reward of an answer; score: that of the profile; rlcr: 1 or 0 for right or wrong, minus the "
        "squared error of the confidence",
    )
    confidence: bool = Field(default=False, description="Also ask for a <confidence>; always on with reward=rlcr")
    correct_at: float = Field(default=0.7, gt=0, le=1, description="Score from which an answer counts as right")
    uncertainty: Literal["off", "reward", "advantage"] = Field(
        default="advantage", description="What is multiplied by the weight w(u) of a row's uncertainty u"
    )
    u0: float = Field(default=0.3, ge=0, lt=1, description="Uncertainty up to which the weight is 1")
    u_hi: float = Field(default=0.5, gt=0, le=1, description="Uncertainty at which the weight is w_hi")
    w_hi: float = Field(default=0.5, gt=0, le=1, description="Weight at the uncertainty u_hi")
    inputs: Inputs = Field(
        default="auto",
        description="Sections in addition to company and question: fundamental adds macro and fundamental data, "
        "news also adds news, full also adds prices; auto: files unchanged, embedded tasks as their type requires",
    )
    cluster: Literal["ticker", "date"] = Field(
        default="ticker",
        description="Cluster of the questions, which must not be in two splits: date for files that are split by time",
    )
    match: str = Field(default="", description="Use only the files of a folder with this text in their names")
    skip_bad: bool = Field(default=False, description="Skip malformed rows with a warning, instead of failing")
    holdout: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the clusters of a single training file that becomes `dev`"
    )
    types: tuple[QuestionType, ...] = Field(default=(), description="Use only questions of these types; empty: all six")
    companies: int = Field(default=40, ge=3, le=2000, description="Companies of the embedded tasks")
    questions: int = Field(default=6, ge=1, le=60, description="Embedded tasks per company")
    noise: Share | Annotated[tuple[Share, ...], Field(min_length=1)] | None = Field(
        default=None, description="Uncertainty of every embedded task, or several values to sample from; unset: 0 to 1"
    )
    track_record: bool = Field(
        default=False, description="State in embedded prompts the probability that the truth agrees with their signal"
    )
    careless: float = Field(
        default=0.0, ge=0, le=1, description="Share of the demonstrations without the <answer> tags"
    )
    hindsight: bool = Field(
        default=True,
        description="Demonstrations give the true answer; else the answer that the signal in an embedded prompt "
        "suggests",
    )
    overconfident: Share = Field(
        default=1.0,
        description="Share of the demonstrations that state confidence 1; the others state the probability of the "
        "signal",
    )
    seed: int = Field(
        default=0, ge=0, description="Seed of the embedded tasks, of mistakes in demonstrations, and of splits"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.u_hi <= self.u0:
            raise ValueError(f"u_hi={self.u_hi} must be above u0={self.u0}")
        if self.overconfident != 1 and not self.asks_confidence:
            raise ValueError("overconfident has no effect without confidence=true or reward=rlcr")
        return self

    @property
    def asks_confidence(self) -> bool:
        """Whether the prompt asks how sure the policy is."""
        return self.confidence or self.reward == "rlcr"
