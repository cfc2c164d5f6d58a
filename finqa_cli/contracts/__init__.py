"""One Protocol per kind of plugin. Components are constructed with their own options and a context."""

from finqa_cli.contracts.call_format import CallError, CallFormat, Schemas
from finqa_cli.contracts.codec import ChatCodec, CodecContext, PlayedTurn, RewritingCodec
from finqa_cli.contracts.engine import ChatEngine, EngineContext, Metered, Probed, Sleeper, TokenEngine, uncounted
from finqa_cli.contracts.environment import Demonstrator, Environment, EnvironmentContext, Session, TextSession
from finqa_cli.contracts.learner import (
    Learner,
    LearnerContext,
    LearnerProcesses,
    PacksSequences,
    ReferenceLearner,
    ValueLearner,
)
from finqa_cli.contracts.optimizer import (
    CreditsBatch,
    EstimatesAdvantages,
    Optimizer,
    PenalizesReward,
    RepeatsPasses,
)
from finqa_cli.contracts.reward import Reward, RewardRequest, Specified
from finqa_cli.contracts.sandbox import ImageBuilder, Sandbox, SandboxContext, SandboxProvider
from finqa_cli.contracts.tracker import Tracker, TrackerContext

__all__ = [
    "CallError",
    "CallFormat",
    "ChatCodec",
    "ChatEngine",
    "CodecContext",
    "CreditsBatch",
    "Demonstrator",
    "EngineContext",
    "Environment",
    "EnvironmentContext",
    "EstimatesAdvantages",
    "ImageBuilder",
    "Learner",
    "LearnerContext",
    "LearnerProcesses",
    "Metered",
    "Optimizer",
    "PacksSequences",
    "PenalizesReward",
    "PlayedTurn",
    "Probed",
    "ReferenceLearner",
    "RepeatsPasses",
    "Reward",
    "RewardRequest",
    "RewritingCodec",
    "Sandbox",
    "SandboxContext",
    "SandboxProvider",
    "Schemas",
    "Session",
    "Sleeper",
    "Specified",
    "TextSession",
    "TokenEngine",
    "Tracker",
    "TrackerContext",
    "ValueLearner",
    "uncounted",
]
