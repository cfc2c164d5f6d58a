"""One contract per kind of plugin. Components are constructed with their own options and a context."""

from finqa_cli.contracts.call_format import CallError, CallFormat, Schemas
from finqa_cli.contracts.codec import ChatCodec, CodecContext, PlayedTurn, ReplyRole, RewritingCodec
from finqa_cli.contracts.engine import ChatEngine, EngineContext, Metered, Probed, Sleeper, TokenEngine, uncounted
from finqa_cli.contracts.environment import (
    Environment,
    EnvironmentContext,
    ScoredPrediction,
    ScoredPredictions,
    Session,
    TextSession,
)
from finqa_cli.contracts.learner import (
    Learner,
    LearnerContext,
    LearnerEvents,
    LearnerProcesses,
)
from finqa_cli.contracts.optimizer import (
    Optimizer,
    PairPlan,
    PreferenceOptimizer,
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
    "EngineContext",
    "Environment",
    "EnvironmentContext",
    "ExecutingSandbox",
    "ImageBuilder",
    "Learner",
    "LearnerContext",
    "LearnerEvents",
    "LearnerProcesses",
    "Metered",
    "Optimizer",
    "PairPlan",
    "PlayedTurn",
    "PreferenceOptimizer",
    "Probed",
    "ReplyRole",
    "Reward",
    "RewardRequest",
    "RewritingCodec",
    "Sandbox",
    "SandboxContext",
    "SandboxProvider",
    "Schemas",
    "ScoredPrediction",
    "ScoredPredictions",
    "Session",
    "ServingSandbox",
    "Sleeper",
    "TextSession",
    "TokenEngine",
    "Tracker",
    "TrackerContext",
    "uncounted",
]
