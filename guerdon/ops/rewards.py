"""Rewards from the logits of a discriminator, which are large for expert transitions."""

import torch
from torch.nn import functional


def gail_reward(logit: torch.Tensor) -> torch.Tensor:
    """-log(1 - D) of GAIL: https://arxiv.org/abs/1606.03476; never negative: rewards survival."""
    return functional.softplus(logit)


def log_d_reward(logit: torch.Tensor) -> torch.Tensor:
    """Log D; never positive: rewards termination."""
    return functional.logsigmoid(logit)


def balanced_reward(logit: torch.Tensor) -> torch.Tensor:
    """Mean of `gail_reward` and `log_d_reward`, which is half the logit; of either sign."""
    return 0.5 * logit


def airl_reward(logit: torch.Tensor) -> torch.Tensor:
    """Log D - log(1 - D) of AIRL: https://arxiv.org/abs/1710.11248; of either sign."""
    return logit


def fairl_reward(logit: torch.Tensor, limit: float = 10.0) -> torch.Tensor:
    """-L exp(L) of the logit L (FAIRL): https://arxiv.org/abs/1911.02256.

    Args:
        logit: [...].
        limit: Largest absolute reward; unlimited, a logit of 20 gives -10 billion.
    """
    logit = logit.clamp(-20.0, 20.0)
    return (-logit * logit.exp()).clamp(-limit, limit)


def bernoulli_entropy(logit: torch.Tensor) -> torch.Tensor:
    """Return the entropy of the discriminator's output in nats, at most log 2."""
    return functional.softplus(logit) - logit * torch.sigmoid(logit)
