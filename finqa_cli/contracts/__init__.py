"""One Protocol per kind of plugin. Components are constructed with their own options and a context."""

from finqa_cli.contracts.codec import ChatCodec, CodecContext
from finqa_cli.contracts.engine import ChatEngine, EngineContext, Metered, TokenEngine
from finqa_cli.contracts.environment import Demonstrator, Environment, EnvironmentContext, Session, TextSession
from finqa_cli.contracts.learner import Learner, LearnerContext
from finqa_cli.contracts.optimizer import Optimizer
from finqa_cli.contracts.reward import Reward, RewardRequest, Specified
from finqa_cli.contracts.sandbox import ImageBuilder, Sandbox, SandboxContext, SandboxProvider
from finqa_cli.contracts.tracker import Tracker, TrackerContext

__all__ = [
    "ChatCodec",
    "ChatEngine",
    "CodecContext",
    "Demonstrator",
    "EngineContext",
    "Environment",
    "EnvironmentContext",
    "ImageBuilder",
    "Learner",
    "LearnerContext",
    "Metered",
    "Optimizer",
    "Reward",
    "RewardRequest",
    "Sandbox",
    "SandboxContext",
    "SandboxProvider",
    "Session",
    "Specified",
    "TextSession",
    "TokenEngine",
    "Tracker",
    "TrackerContext",
]
