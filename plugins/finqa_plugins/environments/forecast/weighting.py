"""Weights from the uncertainty of a row, and where they have an effect. Pure.

The published training multiplies the reward: r' = w(u) r. The uncertainty u belongs to the row, so w is the same for
all attempts of a group, and GRPO's standardised advantage is that of the unweighted rewards,
(w r - mean(w r)) / std(w r) = (r - mean(r)) / std(r): but for the 1e-8 that is added to the deviation the weighting
changes the logged reward and nothing else. Without the division (Dr. GRPO, RLOO) it scales the advantages of the
group by w, as a factor on the advantage itself does under every method.
"""

from __future__ import annotations

import math


def uncertainty_weight(uncertainty: float | None, *, u0: float, u_hi: float, w_hi: float) -> float:
    """w(u) = 1 up to u0, else w_hi ** ((u - u0) / (u_hi - u0)), with u clipped to [0, 1]; 1 where u is not known.

    Source: the reward function `reward_uncertain_versatile` of the published StockR1 experiments, where u0 = 0.3,
    u_hi = 0.5 and w_hi = 0.5: the weight halves with every 0.2 of uncertainty above 0.3.

    Args:
        uncertainty: Of the row, not of the policy.
        u0: Below it nothing is weighted down.
        u_hi: Above u0; where the weight is w_hi.
        w_hi: Above 0.
    """
    if uncertainty is None:
        return 1.0
    clipped = min(1.0, max(0.0, uncertainty))
    return 1.0 if clipped <= u0 else math.exp(math.log(w_hi) * (clipped - u0) / (u_hi - u0))
