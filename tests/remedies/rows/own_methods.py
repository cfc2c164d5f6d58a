"""Training methods, learners and engines of plugins that lack something, or that answer wrongly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from remedies.faults import Fault, text
from remedies.rows.own_environments import SCORE
from remedies.rows.plugin_faults import acme
from remedies.rows.user_code import GOOD, no_reward

from finqa_cli.errors import NothingToLearnError

TRAIN = "train --model embedded --iterations 1 --group-size 2 --target-groups-per-iter 1 --limit 1 --sandboxes 1"
SAME_REWARD = "--reward function --set reward.options.function=r.py:compute_score"
SHORT = f"{TRAIN} --no-preflight --run-dir x"
URI = "data:image/png;base64,iVBORw0KGgo="
TINY = (
    "train --environment ./env.py --model trained/base --iterations 1 --group-size 2 --target-groups-per-iter 1 "
    "--sandboxes 1 --no-preflight --max-gen-tokens 2 --max-steps 1 --allow-overlap --split train --run-dir x"
)
TAKEN = "--run-dir a"
"""A folder that is taken: a training whose method fits ends there."""

METHODS = """
from finqa_cli.algorithms.losses import CrossEntropyLoss
class Imitating(Optimizer):
    def __init__(self, config): ...
    def credit(self, group):
        return Credit(advantages=tuple(0.0 for _ in group.trajectories))
    def loss(self):
        return CrossEntropyLoss()

class Corrected(Imitating):
    def loss(self):
        return PolicyGradientLoss(clip_low=0.2, clip_high=0.2, off_policy="token", off_policy_cap=2.0)

EXTRA += [
    Component(kind="optimizer", name="acme-imitating", target=f"{__name__}:Imitating"),
    Component(kind="optimizer", name="acme-corrected", target=f"{__name__}:Corrected"),
]
"""

LEARNER = """
from finqa_plugins.learners.torch.torch_learner import TorchLearner
class Plain(TorchLearner):
    keeps_reference = False
    has_value_function = False

EXTRA.append(
    Component(
        kind="learner",
        name="acme-learner",
        target=f"{__name__}:Plain",
        config="finqa_plugins.learners.torch.config:TorchLearnerConfig",
    )
)
"""

ENGINE = """
import os
from pathlib import Path
from dataclasses import replace
from finqa_cli.errors import UnreachableEngineError
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine
class Liar(TransformersEngine):
    @property
    def probe_tolerance(self):
        return 0.5
    async def probe(self, request):
        answer = await self.generate(request)
        match os.environ.get("ACME_LIE", ""):
            case "silent":
                return {}
            case "version":
                return {0: replace(answer, policy_version=answer.policy_version + 1)}
            case "short":
                return {0: replace(answer, logprobs=answer.logprobs[1:])}
            case "weights":
                return {0: replace(answer, logprobs=tuple(-9.0 for _ in answer.logprobs))}
        return {0: answer}

class Away(TransformersEngine):
    async def generate(self, request):
        raise UnreachableEngineError("no answer")

EXTRA += [
    Component(
        kind="engine",
        name=name,
        target=f"{__name__}:{target}",
        config="finqa_plugins.engines.transformers.config:TransformersEngineConfig",
    )
    for name, target in (("acme-liar", "Liar"), ("acme-away", "Away"))
]
"""


FAILS = """
async def respond(self, request):
    from finqa_cli.errors import EngineError
    raise EngineError("no answer")
"""


PARTS = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": URI}}]
SEEN = GOOD.replace('"1 + 1?"', repr([{"role": "user", "content": PARTS}]))


def method(command: str, **more: Any) -> Fault:
    return Fault(f"{TRAIN} {TAKEN} {command}", server=acme(module=METHODS), needs=("a",), then=78, **more)


def learner(command: str, **more: Any) -> Fault:
    return Fault(f"{command} --set learner.name=acme-learner", server=acme(module=LEARNER), then=78, **more)


def lying(lie: str) -> Fault:
    """An engine that answers wrongly until its server is started again."""

    @contextmanager
    def once() -> Iterator[None]:
        os.environ["ACME_LIE"] = lie
        yield
        del os.environ["ACME_LIE"]

    return Fault(
        f"{TINY} --engine acme-liar",
        text("env.py", GOOD),
        server=acme(module=ENGINE),
        during=once,
        needs=("trained",),
        instead=True,
        then=(0, NothingToLearnError.exit_code),
    )


METHODS_OF_PLUGINS = {
    "a method that ignores the sampler": method("--optimizer acme-imitating --max-staleness 1"),
    "a method that corrects itself": method("--optimizer acme-corrected --set train.off_policy=icepop"),
    "a learner without a reference": learner(
        f"{SHORT} --set optimizer.options.kl=loss", needs=(), extra="--set lora.target_modules=nosuch"
    ),
    "a learner without a reference for pairs": learner(
        "dpo pairs --epochs 1 --model trained/base",
        needs=("pairs", "trained"),
        extra="--set lora.target_modules=nosuch",
    ),
    "an engine that does not answer the probe": lying("silent"),
    "an engine of another version": lying("version"),
    "an engine of fewer log-probabilities": lying("short"),
    "an engine of other weights": lying("weights"),
    "replicas that are all away": Fault(
        "eval trained/base --engine acme-away --engine-replicas 2 --set engine.options.lockstep=false --limit 1 "
        "--sandboxes 1 --max-steps 1",
        server=acme(module=ENGINE),
        needs=("trained",),
    ),
    "an engine that fails again and again": Fault(
        "eval acme-engine --environment acme-environment --split test --sandboxes 1",
        server=acme("Answers", FAILS),
        needs=(),
    ),
    "images for an engine of tokens": Fault(
        "eval trained/base --environment ./env.py --limit 1 --split train --max-gen-tokens 2 --max-steps 1",
        text("env.py", SEEN),
        needs=("trained",),
        then=77,
    ),
    "attempts that all earn the same": Fault(
        f"{TRAIN} --run-dir x {SAME_REWARD}",
        text("r.py", SCORE),
        needs=(),
        elsewhere=("train it by imitation",),
        then=NothingToLearnError.exit_code,
    ),
    "an evaluation of a training with faults": Fault(
        TINY, needs=("trained",), during=no_reward, instead=True, then=(0, NothingToLearnError.exit_code)
    ),
}
