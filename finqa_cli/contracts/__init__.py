"""One contract per kind of plugin. Components are constructed with their own options and a context."""

from finqa_cli.contracts.call_format import CallError, CallFormat, Schemas
from finqa_cli.contracts.codec import ChatCodec, CodecContext, PlayedTurn, ReplyRole, RewritingCodec
from finqa_cli.contracts.engine import ChatEngine, EngineContext, Metered, Probed, Sleeper, TokenEngine, uncounted
from finqa_cli.contracts.environment import Environment, EnvironmentContext, Session, TextSession
from finqa_cli.contracts.learner import (
    Learner,
    LearnerContext,
    LearnerEvents,
    LearnerProcesses,
    PacksSequences,
    ReferenceLearner,
    ReportingLearner,
    ValueLearner,
)
from finqa_cli.contracts.optimizer import (
    CreditsBatch,
    EstimatesAdvantages,
    KnowsIdleOptions,
    Optimizer,
    PenalizesReward,
    RepeatsPasses,
)
from finqa_cli.contracts.reward import OWN_PREFIX, Reward, RewardRequest
from finqa_cli.contracts.sandbox_provider import (
    ExecutingSandbox,
    ImageBuilder,
    Sandbox,
    SandboxContext,
    SandboxProvider,
    ServingSandbox,
)
from finqa_cli.contracts.tracker import Tracker, TrackerContext

__all__ = [
    "OWN_PREFIX",
    "CallError",
    "CallFormat",
    "ChatCodec",
    "ChatEngine",
    "CodecContext",
    "CreditsBatch",
    "EngineContext",
    "Environment",
    "EnvironmentContext",
    "EstimatesAdvantages",
    "ExecutingSandbox",
    "ImageBuilder",
    "KnowsIdleOptions",
    "Learner",
    "LearnerContext",
    "LearnerEvents",
    "LearnerProcesses",
    "Metered",
    "Optimizer",
    "PacksSequences",
    "PenalizesReward",
    "PlayedTurn",
    "Probed",
    "ReferenceLearner",
    "ReportingLearner",
    "RepeatsPasses",
    "ReplyRole",
    "Reward",
    "RewardRequest",
    "RewritingCodec",
    "Sandbox",
    "SandboxContext",
    "SandboxProvider",
    "Schemas",
    "Session",
    "ServingSandbox",
    "Sleeper",
    "TextSession",
    "TokenEngine",
    "Tracker",
    "TrackerContext",
    "ValueLearner",
    "uncounted",
]
