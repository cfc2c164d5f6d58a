"""What several attempts at each question tell: can it ever (pass@k), and does it always (pass^k)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(attempts: int, right: int, k: int) -> float:
    """Chance that at least one of k attempts at a question is right, unbiased: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, section 2.1.

    Raises:
        ValueError: `k` is not in 1..`attempts`, or `right` not in 0..`attempts`.
    """
    _check(attempts, right, k)
    return 1 - math.comb(attempts - right, k) / math.comb(attempts, k)


def pass_hat_k(attempts: int, right: int, k: int) -> float:
    """Chance that all of k attempts at a question are right, unbiased: C(c, k) / C(n, k).

    Source: Yao et al. 2024, "tau-bench", arXiv 2406.12045, section 3 (pass^k).

    Raises:
        ValueError: `k` is not in 1..`attempts`, or `right` not in 0..`attempts`.
    """
    _check(attempts, right, k)
    return math.comb(right, k) / math.comb(attempts, k)


def k_values(attempts: Sequence[int]) -> list[int]:
    """1, 2, 4, ... and the largest k that every question has attempts for; empty without questions."""
    most = min(attempts, default=0)
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return sorted({*powers, most}) if most else []


def _check(attempts: int, right: int, k: int) -> None:
    if not 0 <= right <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"{right} of {attempts} attempts right, k = {k}")
