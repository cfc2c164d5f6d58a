"""Published variants of GRPO as presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finqa_cli.types import Normalization

Std = Literal["none", "group", "batch"]
Ratio = Literal["token", "sequence"]
Variant = Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a variant sets.

    Attributes:
        defines: Names of the options that make the variant what it is: another value contradicts it. The others are
            defaults.
    """

    normalization: Normalization = "trained"
    normalize_std: Std = "none"
    ratio: Ratio = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    defines: frozenset[str] = frozenset()


_FORM = frozenset({"normalization", "ratio"})

PLAIN = Preset()
"""No variant: Dr. GRPO's advantage under DAPO's mean over tokens, with PPO's symmetric clip."""

PRESETS: dict[Variant, Preset] = {
    # DeepSeekMath, arXiv 2402.03300, equation 3 and section 4.1.2. Its KL term is option kl=loss, there with 0.04.
    "grpo": Preset(normalization="sequence", normalize_std="group", defines=_FORM),
    # arXiv 2503.14476, equations 8 and 9; clips of section 4.1. Groups without signal are left out in any case.
    "dapo": Preset(normalization="token", normalize_std="group", clip_high=0.28, defines=_FORM),
    # arXiv 2503.20783, section 3.2: neither division by the deviation nor by the length of an episode.
    "dr_grpo": Preset(normalization="constant", defines=_FORM | {"normalize_std"}),
    # arXiv 2507.18071, equations 5 to 7; clips of section 5.1.
    "gspo": Preset(
        normalization="sequence",
        normalize_std="group",
        ratio="sequence",
        clip_low=3e-4,
        clip_high=4e-4,
        defines=_FORM | {"dual_clip"},
    ),
    # MiniMax-M1, arXiv 2506.13585, equations 4 and 5, which has no lower bound and leaves the upper one open; 5, as
    # 1 + clip_high, is in the range that ScaleRL, arXiv 2510.13786, found to make no difference.
    "cispo": Preset(
        normalization="token", normalize_std="group", clip_low=0.0, clip_high=4.0, defines=_FORM | {"dual_clip"}
    ),
}
