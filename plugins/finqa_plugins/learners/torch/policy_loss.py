"""The policy gradient: PPO, GSPO and CISPO, corrected for the sampler, with KL and entropy. See `PolicyGradientLoss`.

Importance weights correct for k = exp(anchor logp - sampler logp) of a token. Truncating k per token (`token`) has
little variance, but leaves out how tokens change which later states are reached. The product over the sequence
(`sequence`) is unbiased except for the cap, but its spread grows with the length: at 0.03 nats per token and 2,000
tokens the standard deviation of the log product is 1.3. `icepop` masks tokens. `geometric` rejects sequences by the
geometric mean of the ratio, which does not depend on the length, and does not correct the sequences that it keeps.

Sources: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025,
https://fengyao.notion.site/off-policy-rl) for truncation; Liu, Li et al., "When Speed Kills Stability" (2025,
https://richardli.xyz/rl-collapse) for products, geometric means and masking; Ling Team, "Every Step Evolves", arXiv
2510.18855, for IcePop. The forms are those of TRL's `vllm_importance_sampling_mode` `token_truncate` and
`sequence_mask`, and of verl's `rollout_is=token`, `token` with two thresholds (IcePop) and preset `decoupled_geo_rs`,
with verl's bound exp(20) on any ratio. As in TRL, masked tokens stay in the number by which the loss is
divided: the estimate is a mean over all sampled tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_plugins.learners.torch.forward import Inputs
from finqa_plugins.learners.torch.step_metrics import TokenLoss

Sums = dict[str, Tensor]


def policy_gradient(loss: PolicyGradientLoss, logprobs: Tensor, entropy: Tensor, inputs: Inputs) -> TokenLoss:
    """-(w (f(r) A - kl_coef KL) + entropy_coef H), each token times its weight in the batch.

    Three policies: the sampler, which w corrects for; the anchor, around which steps are clipped; the current one.
    Decoupled PPO: AReaL, arXiv 2505.24298, section 5.2, after Hilton et al., arXiv 2110.00641. The anchor is computed
    by the learner: an engine's log-probabilities differ by rounding, which alone exceeds the narrow clips of GSPO.
    If the samples carry no proximal log-probabilities, the current weights are the anchor: the ratio is 1, and its
    gradient that of logp. w also weights the KL term, which is an expectation over samples; the entropy needs no
    weight, because it is exact for each sampled state.
    """
    current = logprobs.detach()
    anchor = current if inputs.proximal_logprobs is None else inputs.proximal_logprobs
    weights, sums, sequence_sums = importance_weights(loss, anchor, inputs)
    objective, ratio_sums = surrogate_objective(loss, logprobs, anchor, inputs, weights)
    apart = (current - inputs.old_logprobs).abs()
    sums |= ratio_sums | {"logprob_difference_mean": apart.sum(), "kl": k3(inputs.old_logprobs, current).sum()}
    if inputs.proximal_logprobs is not None:
        sums["kl_proximal"] = k3(anchor, current).sum()
    if inputs.reference_logprobs is not None:
        sums["kl_reference"] = k3(current, inputs.reference_logprobs).sum()
        if loss.kl_coef:
            objective = objective - weights * kl_term(loss, logprobs, anchor, inputs.reference_logprobs)
    if loss.entropy_coef:
        objective = objective + loss.entropy_coef * entropy
    return TokenLoss(
        loss=-(inputs.weights * objective).sum(),
        sums=sums,
        maxima={"logprob_difference_max": apart.max()} if apart.numel() else {},
        sequence_sums=sequence_sums,
    )


def surrogate_objective(
    loss: PolicyGradientLoss, logprobs: Tensor, anchor: Tensor, inputs: Inputs, weights: Tensor | float
) -> tuple[Tensor, Sums]:
    """[N] w f(r) A with gradient, and sums about the ratio without; r = exp(logp - anchor).

    - `ppo`: min(r A, clip(r, 1 - low, 1 + high) A), PPO, arXiv 1707.06347, equation 7, per token, with a bound for each
      side (DAPO, arXiv 2503.14476, section 3.1). With a dual clip, it is at least dual A for A < 0, so that a token
      that became much more likely has no gradient: arXiv 1912.09729.
    - `gspo`: the same form for s = exp(mean of logp - anchor over the sequence). arXiv 2507.18071, equations 5 and 7,
      in the form of equation 14 (GSPO-token): each token has s as its ratio, with the gradient s grad logp. Summed over
      a sequence whose advantages and weights are equal, value and gradient are those of |o| times equation 5.
    - `cispo`: clip(r, 1 - low, 1 + high) A logp, the ratio without gradient. MiniMax-M1, arXiv 2506.13585, equations 4
      and 5. Every token keeps its gradient; only its weight is bounded.

    Weights multiply the ratio after its clip: with one step the product is then exactly the ratio to the sampler.
    """
    advantages, current = inputs.advantages, logprobs.detach()
    if loss.form == "gspo":
        means = torch.stack([part.mean() for part in inputs.by_sequence(current - anchor)])
        ratio = inputs.spread(bounded_ratio(means)) * (logprobs - current).exp()
    else:
        ratio = bounded_ratio((current if loss.form == "cispo" else logprobs) - anchor)
    low, high = loss.clip_low, loss.clip_high
    clipped = ratio.clamp(1.0 - low if low else None, 1.0 + high if high else None) if low or high else ratio
    sums = {"ratio_mean": ratio.detach().sum()}
    if loss.form == "cispo":
        return clipped * weights * advantages * logprobs, sums | {"clip_fraction": (clipped != ratio).sum()}
    objective = torch.minimum(ratio * weights * advantages, clipped * weights * advantages)
    sums["clip_fraction"] = (clipped * advantages < ratio * advantages).sum()
    if loss.dual_clip:
        floor = loss.dual_clip * weights * advantages
        held = (advantages < 0) & (objective < floor)
        objective, sums["dual_clip_fraction"] = torch.where(held, floor, objective), held.sum()
    return objective, sums


def importance_weights(loss: PolicyGradientLoss, anchor: Tensor, inputs: Inputs) -> tuple[Tensor | float, Sums, Sums]:
    """The weights w [N] without gradient, or 1.0; and sums over tokens and over sequences, by name."""
    if loss.off_policy == "none":
        return 1.0, {}, {}
    log_ratio = anchor - inputs.old_logprobs
    by_sequence = loss.off_policy in ("sequence", "geometric")
    if by_sequence:
        parts = inputs.by_sequence(log_ratio)
        log_ratio = torch.stack([part.sum() if loss.off_policy == "sequence" else part.mean() for part in parts])
    ratio = bounded_ratio(log_ratio)
    masked = (ratio < loss.off_policy_floor) | (ratio > loss.off_policy_cap)
    if loss.off_policy == "token":
        weights = ratio.clamp(max=loss.off_policy_cap)
        return weights, {"importance_weight_mean": weights.sum(), "importance_truncated": masked.sum()}, {}
    weights = (torch.ones_like(ratio) if loss.off_policy == "geometric" else ratio).masked_fill(masked, 0.0)
    if not by_sequence:
        return weights, {"importance_weight_mean": weights.sum(), "tokens_masked": masked.sum()}, {}
    weights = inputs.spread(weights)
    return weights, {"importance_weight_mean": weights.sum()}, {"sequences_masked": masked.sum()}


def kl_term(loss: PolicyGradientLoss, logprobs: Tensor, anchor: Tensor, reference: Tensor) -> Tensor:
    """[N] coefficient times an estimate of KL(current || reference), whose gradient is that of a divergence.

    k3 is GRPO's term: exp(reference - logp) - 1 - (reference - logp) (DeepSeekMath, arXiv 2402.03300, equation 4).
    Differentiated directly, its expected gradient on policy is that of KL(reference || current), which has the
    same minimum. k1 = logp - reference is multiplied by the ratio r to the anchor, because the expected gradient of k1
    by itself is 0; that of r k1 is the gradient of KL(current || reference), also off policy (arXiv 2505.17508 and
    2510.01555).
    """
    if loss.kl_estimator == "k1":
        return loss.kl_coef * bounded_ratio(logprobs - anchor) * (logprobs - reference)
    return loss.kl_coef * k3(logprobs, reference)


def k3(logprobs: Tensor, other: Tensor) -> Tensor:
    """[N] k3 estimate of KL(policy || other): r - 1 - log r with r = other / policy (Schulman, "Approximating KL
    divergence", 2020).
    """
    difference = other - logprobs
    return bounded_ratio(difference) - 1.0 - difference


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), clamped to [exp(-20), exp(20)], with a gradient of 0 outside.

    exp(20) is 4.9e8: larger ratios could only overflow.
    """
    return log_ratio.clamp(-20.0, 20.0).exp()
