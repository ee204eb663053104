"""Pure functions: returns, losses, distributions and exploration."""

from guerdon.ops.comparison import canonical_reward, pearson_distance
from guerdon.ops.distributions import (
    categorical_log_prob,
    categorical_log_prob_entropy,
    categorical_mode,
    categorical_sample,
    clipped_gaussian_log_prob,
    gaussian_entropy,
    gaussian_log_prob,
    gaussian_sample,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)
from guerdon.ops.exploration import epsilon_greedy, epsilon_greedy_sample
from guerdon.ops.policy_gradient import (
    a2c_policy_loss,
    a2c_value_loss,
    approx_kl,
    clip_fraction,
    explained_variance,
    ppo_policy_loss,
    ppo_value_loss,
)
from guerdon.ops.preferences import (
    preference_accuracy,
    preference_logit,
    preference_loss,
    preference_probability,
)
from guerdon.ops.returns import backward_scan, generalized_advantage, multistep_return, vtrace
from guerdon.ops.rewards import (
    airl_reward,
    balanced_reward,
    bernoulli_entropy,
    fairl_reward,
    gail_reward,
    log_d_reward,
)
from guerdon.ops.td import double_q_value, huber_loss, select_action, soft_value, squared_loss

__all__ = [
    "a2c_policy_loss",
    "a2c_value_loss",
    "airl_reward",
    "approx_kl",
    "backward_scan",
    "balanced_reward",
    "bernoulli_entropy",
    "canonical_reward",
    "categorical_log_prob",
    "categorical_log_prob_entropy",
    "categorical_mode",
    "categorical_sample",
    "clip_fraction",
    "clipped_gaussian_log_prob",
    "double_q_value",
    "epsilon_greedy",
    "epsilon_greedy_sample",
    "explained_variance",
    "fairl_reward",
    "gail_reward",
    "gaussian_entropy",
    "gaussian_log_prob",
    "gaussian_sample",
    "generalized_advantage",
    "huber_loss",
    "log_d_reward",
    "multistep_return",
    "pearson_distance",
    "ppo_policy_loss",
    "ppo_value_loss",
    "preference_accuracy",
    "preference_logit",
    "preference_loss",
    "preference_probability",
    "select_action",
    "soft_value",
    "squared_loss",
    "squashed_gaussian_log_prob",
    "squashed_gaussian_sample",
    "vtrace",
]
