"""Counterfactual multi-agent policy gradients: https://arxiv.org/abs/1705.08926."""

import torch

from guerdon.ops.checks import rows_of, same_shape, weighted_mean
from guerdon.ops.distributions import categorical_log_prob
from guerdon.ops.td import select_action


def counterfactual_advantage(
    logit: torch.Tensor, act: torch.Tensor, q_value: torch.Tensor
) -> torch.Tensor:
    """How much better an agent's action was than its policy's average, the others' actions fixed.

    Args:
        logit: Of the agent's policy, [..., N].
        act: What it did, int64 [...].
        q_value: Q of its actions, given what all others did, [..., N].

    Returns:
        Advantages, [...], without a gradient.
    """
    same_shape(logit=logit, q_value=q_value)
    with torch.no_grad():
        baseline = (torch.softmax(logit, -1) * q_value).sum(-1)
        return select_action(q_value, act) - baseline


def coma_policy_loss(
    logit: torch.Tensor,
    act: torch.Tensor,
    q_value: torch.Tensor,
    weight: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The policy gradient with counterfactual advantages, 0-dim.

    Args:
        logit: [..., N], agents being one of the axes.
        act: int64, [...].
        q_value: [..., N]; no gradient passes to it.
        weight: Multiplies each row, [...].
        mask: False for rows that do not count, [...].
    """
    rows_of(logit, act=act, weight=weight, mask=mask)
    advantage = counterfactual_advantage(logit, act, q_value)
    return -weighted_mean(categorical_log_prob(logit, act) * advantage, weight, mask)
