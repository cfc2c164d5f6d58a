"""The contract of each kind of plugin. Components are constructed with their own options and, mostly, a context."""

from finqa_cli.contracts.account_quota import AccountQuota, Grant
from finqa_cli.contracts.answer_judge import AnswerJudge, Judgement
from finqa_cli.contracts.call_format import CallError, CallFormat, NoCallError, Schemas
from finqa_cli.contracts.codec import ChatCodec, CodecContext, PlayedTurn, ReplyRole
from finqa_cli.contracts.engine import ChatEngine, Engine, EngineContext, TokenEngine, uncounted
from finqa_cli.contracts.engine_loans import EngineLoan, EngineRoute, ServerAccess, ServerClient
from finqa_cli.contracts.environment import (
    BaseSession,
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
    Sandbox,
    SandboxContext,
    SandboxProvider,
    ServingSandbox,
)
from finqa_cli.contracts.tracker import Tracker, TrackerContext

__all__ = [
    "OWN_PREFIX",
    "AccountQuota",
    "AnswerJudge",
    "BaseSession",
    "CallError",
    "CallFormat",
    "ChatCodec",
    "ChatEngine",
    "CodecContext",
    "Engine",
    "EngineContext",
    "EngineLoan",
    "EngineRoute",
    "Environment",
    "EnvironmentContext",
    "ExecutingSandbox",
    "Grant",
    "Judgement",
    "Learner",
    "LearnerContext",
    "LearnerEvents",
    "LearnerProcesses",
    "NoCallError",
    "Optimizer",
    "PairPlan",
    "PlayedTurn",
    "PreferenceOptimizer",
    "ReplyRole",
    "Reward",
    "RewardRequest",
    "Sandbox",
    "SandboxContext",
    "SandboxProvider",
    "Schemas",
    "ScoredPrediction",
    "ScoredPredictions",
    "ServerAccess",
    "ServerClient",
    "Session",
    "ServingSandbox",
    "TextSession",
    "TokenEngine",
    "Tracker",
    "TrackerContext",
    "uncounted",
]
