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
    """How replies are judged, how files are read, and what is generated when there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    profile: Profile = Field(
        default="strict", description="versatile: the published scores, holes included; strict: without the holes"
    )
    reward: Literal["score", "rlcr"] = Field(
        default="score",
        description="score: of the profile; rlcr: right or not, less the squared error of the confidence",
    )
    confidence: bool = Field(default=False, description="Ask for a <confidence> as well; reward=rlcr always does")
    correct_at: float = Field(default=0.7, gt=0, le=1, description="Score from which an answer counts as right")
    uncertainty: Literal["off", "reward", "advantage"] = Field(
        default="advantage", description="What w(u) of a row's uncertainty u is a factor on"
    )
    u0: float = Field(default=0.3, ge=0, lt=1, description="Uncertainty up to which the weight is 1")
    u_hi: float = Field(default=0.5, gt=0, le=1, description="Uncertainty at which the weight is w_hi")
    w_hi: float = Field(default=0.5, gt=0, le=1, description="Weight at the uncertainty u_hi")
    inputs: Inputs = Field(
        default="auto", description="Sections beside company and question: fundamental adds macro and fundamental "
        "data, news also news, full also prices; auto: files as they are, embedded ones as their type needs"
    )  # fmt: skip
    cluster: Literal["ticker", "date"] = Field(
        default="ticker", description="What questions share, and no two splits may: date for files that are cut by time"
    )
    match: str = Field(default="", description="Take only the files of a folder with this text in their names")
    skip_bad: bool = Field(default=False, description="Leave out malformed rows, with a warning, instead of failing")
    holdout: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the clusters of a single training file that becomes `dev`"
    )
    types: tuple[QuestionType, ...] = Field(default=(), description="Only questions of these types; empty: of all six")
    companies: int = Field(default=40, ge=3, le=2000, description="Companies of the embedded tasks")
    questions: int = Field(default=6, ge=1, le=60, description="Embedded tasks per company")
    noise: Share | Annotated[tuple[Share, ...], Field(min_length=1)] | None = Field(
        default=None, description="Uncertainty of every embedded task, or several to draw from; unset: 0 to 1"
    )
    track_record: bool = Field(
        default=False, description="Tell in embedded prompts how likely the truth is what they point to"
    )
    careless: float = Field(
        default=0.0, ge=0, le=1, description="Share of the demonstrations that forget the <answer> tags"
    )
    hindsight: bool = Field(
        default=True, description="Demonstrations tell the truth; else what an embedded prompt points to"
    )
    overconfident: Share = Field(
        default=1.0, description="Share of the demonstrations that state confidence 1; else how likely the signal is"
    )
    seed: int = Field(default=0, ge=0, description="Seed of the embedded tasks, careless demonstrations and splits")

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
