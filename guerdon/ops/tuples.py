"""The loss library of the nerveX tutorial under its documented names.

Each function unpacks a namedtuple and calls the pure functions of this package; use those in new
code. `done` means terminated: it stops the bootstrap, so a truncation does not belong into it.
`weight` may be None. Losses are 0-dim tensors.
"""

from collections import namedtuple
from collections.abc import Callable

import torch
from torch import nn

from guerdon.ops.checks import same_shape, weighted_mean
from guerdon.ops.coma import coma_policy_loss
from guerdon.ops.distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_log_prob_entropy,
)
from guerdon.ops.off_policy import importance_weights, upgo_return, vtrace
from guerdon.ops.policy_gradient import (
    a2c_policy_loss,
    a2c_value_loss,
    approx_kl,
    clip_fraction,
    ppo_policy_loss,
    ppo_value_loss,
)
from guerdon.ops.returns import generalized_advantage, multistep_return
from guerdon.ops.td import (
    categorical_td_error,
    lambda_error,
    quantile_td_error,
    select_action,
    squared_loss,
)

Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SQUARED_ERROR = nn.MSELoss(reduction="none")

q_1step_td_data = namedtuple(
    "q_1step_td_data", ["q", "next_q", "act", "next_act", "reward", "done", "weight"]
)
q_nstep_td_data = namedtuple(
    "q_nstep_td_data", ["q", "next_n_q", "action", "next_n_action", "reward", "done", "weight"]
)
nstep_return_data = namedtuple("nstep_return_data", ["reward", "next_value", "done"])
v_1step_td_data = namedtuple("v_1step_td_data", ["v", "next_v", "reward", "done", "weight"])
v_nstep_td_data = namedtuple("v_nstep_td_data", ["v", "next_n_v", "reward", "done", "weight"])
dist_1step_td_data = namedtuple(
    "dist_1step_td_data", ["dist", "next_dist", "act", "next_act", "reward", "done", "weight"]
)
dist_nstep_td_data = namedtuple(
    "dist_nstep_td_data", ["dist", "next_n_dist", "act", "next_n_act", "reward", "done", "weight"]
)
qrdqn_nstep_td_data = namedtuple(
    "qrdqn_nstep_td_data",
    ["q", "next_n_q", "action", "next_n_action", "reward", "done", "tau", "weight"],
)
iqn_nstep_td_data = namedtuple(
    "iqn_nstep_td_data",
    ["q", "next_n_q", "action", "next_n_action", "reward", "done", "replay_quantiles", "weight"],
)
td_lambda_data = namedtuple("td_lambda_data", ["value", "reward", "weight"])
gae_data = namedtuple(
    "gae_data", ["value", "next_value", "reward", "done", "traj_flag"], defaults=[None]
)
ppo_data = namedtuple(
    "ppo_data",
    ["logit_new", "logit_old", "action", "value_new", "value_old", "adv", "return_", "weight"],
)
ppo_loss = namedtuple("ppo_loss", ["policy_loss", "value_loss", "entropy_loss"])
ppo_info = namedtuple("ppo_info", ["approx_kl", "clipfrac"])
a2c_data = namedtuple("a2c_data", ["logit", "action", "value", "adv", "return_", "weight"])
a2c_loss = namedtuple("a2c_loss", ["policy_loss", "value_loss", "entropy_loss"])
vtrace_data = namedtuple(
    "vtrace_data", ["target_output", "behaviour_output", "action", "value", "reward", "weight"]
)
vtrace_loss = namedtuple("vtrace_loss", ["policy_loss", "value_loss", "entropy_loss"])
coma_data = namedtuple(
    "coma_data", ["logit", "action", "q_value", "target_q_value", "reward", "weight"]
)
coma_loss = namedtuple("coma_loss", ["policy_loss", "q_value_loss", "entropy_loss"])


# --- temporal differences


def nstep_return(data: nstep_return_data, gamma: float, nstep: int) -> torch.Tensor:
    """The n-step target, [B].

    Args:
        data: reward [nstep, B], next_value [B] and done [B] (terminated) after the last step.
        gamma: Discount of one step.
        nstep: Steps.
    """
    reward, next_value, done = data
    r_t, discount_t = _nstep(reward, done, gamma, nstep)
    same_shape(1, next_value=next_value, returns=r_t)
    return torch.addcmul(r_t, discount_t, next_value)


def q_1step_td_error(
    data: q_1step_td_data, gamma: float, criterion: Criterion = SQUARED_ERROR
) -> torch.Tensor:
    """One-step Q-learning: q and next_q [B, N]; act, next_act, reward, done and weight [B]."""
    q, next_q, act, next_act, reward, done, weight = data
    same_shape(1, act=act, next_act=next_act, reward=reward, done=done, weight=weight)
    target = reward + _discount(done, gamma, reward) * select_action(next_q, next_act)
    return weighted_mean(criterion(select_action(q, act), target.detach()), weight)


def q_nstep_td_error(
    data: q_nstep_td_data, gamma: float, nstep: int = 1, criterion: Criterion = SQUARED_ERROR
) -> torch.Tensor:
    """n-step Q-learning.

    Args:
        data: q and next_n_q [B, N]; action, next_n_action and done (terminated) [B]; reward
            [nstep, B]; weight [B] or None.
        gamma: Discount of one step.
        nstep: Steps.
        criterion: Takes prediction and target, returns [B].
    """
    q, next_n_q, action, next_n_action, reward, done, weight = data
    same_shape(1, action=action, next_n_action=next_n_action, done=done, weight=weight)
    next_value = select_action(next_n_q, next_n_action)
    target = nstep_return(nstep_return_data(reward, next_value, done), gamma, nstep)
    return weighted_mean(criterion(select_action(q, action), target.detach()), weight)


def v_1step_td_error(
    data: v_1step_td_data, gamma: float, criterion: Criterion = SQUARED_ERROR
) -> torch.Tensor:
    """One-step TD: v, next_v, reward, done and weight [B]; done and weight may be None."""
    v, next_v, reward, done, weight = data
    same_shape(1, v=v, next_v=next_v, reward=reward, done=done, weight=weight)
    discount = gamma if done is None else _discount(done, gamma, reward)
    return weighted_mean(criterion(v, (reward + discount * next_v).detach()), weight)


def v_nstep_td_error(
    data: v_nstep_td_data, gamma: float, nstep: int = 1, criterion: Criterion = SQUARED_ERROR
) -> torch.Tensor:
    """n-step TD: v, next_n_v, done and weight [B]; reward [nstep, B]."""
    v, next_n_v, reward, done, weight = data
    same_shape(1, v=v, next_n_v=next_n_v, done=done, weight=weight)
    target = nstep_return(nstep_return_data(reward, next_n_v, done), gamma, nstep)
    return weighted_mean(criterion(v, target.detach()), weight)


def dist_1step_td_error(
    data: dist_1step_td_data, gamma: float, v_min: float, v_max: float, n_atom: int
) -> torch.Tensor:
    """C51: dist and next_dist are probabilities [B, N, n_atom]; the rest is [B]."""
    rows = dist_nstep_td_data(*data._replace(reward=data.reward.unsqueeze(0)))
    return dist_nstep_td_error(rows, gamma, v_min, v_max, n_atom)


def dist_nstep_td_error(
    data: dist_nstep_td_data, gamma: float, v_min: float, v_max: float, n_atom: int, nstep: int = 1
) -> torch.Tensor:
    """n-step C51: reward is [nstep, B], and else as in `dist_1step_td_error`."""
    dist, next_n_dist, act, next_n_act, reward, done, weight = data
    same_shape(1, act=act, next_n_act=next_n_act, done=done, weight=weight)
    support = torch.linspace(v_min, v_max, n_atom, dtype=dist.dtype, device=dist.device)
    # Softmax in float32 underflows to exactly 0, whose logarithm would end the run.
    log_prob = select_action(dist, act).clamp(min=torch.finfo(dist.dtype).tiny).log()
    r_t, discount_t = _nstep(reward, done, gamma, nstep)
    error = categorical_td_error(
        log_prob, r_t, discount_t, select_action(next_n_dist, next_n_act), support
    )
    return weighted_mean(error, weight)


def qrdqn_nstep_td_error(
    data: qrdqn_nstep_td_data, gamma: float, nstep: int = 1, kappa: float = 1.0
) -> torch.Tensor:
    """n-step QR-DQN.

    Args:
        data: q and next_n_q [B, N, n_quantiles]; tau with n_quantiles fractions; action,
            next_n_action, done and weight [B]; reward [nstep, B].
        gamma: Discount of one step.
        nstep: Steps.
        kappa: Where the Huber loss turns into a line.
    """
    q, next_n_q, action, next_n_action, reward, done, tau, weight = data
    same_shape(1, action=action, next_n_action=next_n_action, done=done, weight=weight)
    r_t, discount_t = _nstep(reward, done, gamma, nstep)
    quantile_t = select_action(next_n_q, next_n_action)
    error = quantile_td_error(
        select_action(q, action), tau.reshape(-1), r_t, discount_t, quantile_t, kappa
    )
    return weighted_mean(error, weight)


def iqn_nstep_td_error(
    data: iqn_nstep_td_data, gamma: float, nstep: int = 1, kappa: float = 1.0
) -> torch.Tensor:
    """n-step IQN.

    Args:
        data: q [n_tau, B, N]; next_n_q [n_tau', B, N]; replay_quantiles, the fractions of q,
            n_tau * B numbers, tau by tau; action, next_n_action, done and weight [B];
            reward [nstep, B].
        gamma: Discount of one step.
        nstep: Steps.
        kappa: Where the Huber loss turns into a line.
    """
    q, next_n_q, action, next_n_action, reward, done, replay_quantiles, weight = data
    same_shape(1, action=action, next_n_action=next_n_action, done=done, weight=weight)
    r_t, discount_t = _nstep(reward, done, gamma, nstep)
    quantile_tm1 = select_action(q.permute(1, 2, 0), action)
    quantile_t = select_action(next_n_q.permute(1, 2, 0), next_n_action)
    tau = replay_quantiles.reshape(q.shape[:2]).T
    error = quantile_td_error(quantile_tm1, tau, r_t, discount_t, quantile_t, kappa)
    return weighted_mean(error, weight)


def td_lambda_error(data: td_lambda_data, gamma: float = 0.9, lambda_: float = 0.8) -> torch.Tensor:
    """TD(lambda): value [T + 1, B], 0 from a terminal state on; reward and weight [T, B]."""
    value, reward, weight = data
    error = lambda_error(value[:-1], reward, value[1:], *_unbroken(reward, gamma), lambda_)
    return squared_loss(error, weight)


def gae(data: gae_data, gamma: float = 0.99, lambda_: float = 0.97) -> torch.Tensor:
    """Generalized advantage estimation, [T, B].

    Args:
        data: value, next_value, reward, done (terminated), traj_flag (the trajectory ends after
            this row, for whatever reason; None where only `done` ends one), all [T, B].
        gamma: Discount of one step.
        lambda_: Of the trace.
    """
    value, next_value, reward, done, traj_flag = data
    cut = (done if traj_flag is None else traj_flag).bool()
    discount = _discount(done, gamma, reward)
    with torch.no_grad():
        advantage: torch.Tensor = generalized_advantage(
            reward, value, next_value, discount, cut, lambda_
        )
    return advantage


# --- policies


def ppo_error(
    data: ppo_data,
    clip_ratio: float = 0.2,
    use_value_clip: bool = True,
    dual_clip: float | None = None,
) -> tuple[ppo_loss, ppo_info]:
    """PPO with discrete actions: logits [B, N], all else [B]; losses, and two numbers to watch."""
    logit_new, logit_old, action, value_new, value_old, adv, return_, weight = data
    log_prob, entropy = categorical_log_prob_entropy(logit_new, action)
    log_prob_old = categorical_log_prob(logit_old, action).detach()
    losses = ppo_loss(
        ppo_policy_loss(log_prob, log_prob_old, adv, clip_ratio, weight, dual_clip=dual_clip),
        ppo_value_loss(
            value_new, return_, value_old, clip_ratio if use_value_clip else None, weight
        ),
        weighted_mean(entropy, weight),
    )
    return losses, ppo_info(
        approx_kl(log_prob, log_prob_old), clip_fraction(log_prob, log_prob_old, clip_ratio)
    )


def a2c_error(data: a2c_data) -> a2c_loss:
    """A2C with discrete actions: logit [B, N], all else [B]."""
    logit, action, value, adv, return_, weight = data
    log_prob, entropy = categorical_log_prob_entropy(logit, action)
    return a2c_loss(
        a2c_policy_loss(log_prob, adv, weight),
        a2c_value_loss(value, return_, weight),
        weighted_mean(entropy, weight),
    )


def compute_importance_weights(
    target_output: torch.Tensor,
    behaviour_output: torch.Tensor,
    action: torch.Tensor,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Ratios of probabilities [T, B] from the logits [T, B, N] of the two policies."""
    log_prob = categorical_log_prob(target_output, action)
    log_prob_behaviour = categorical_log_prob(behaviour_output, action)
    if requires_grad:
        return torch.exp(log_prob - log_prob_behaviour)
    return importance_weights(log_prob, log_prob_behaviour)


def vtrace_error(
    data: vtrace_data,
    gamma: float = 0.99,
    lambda_: float = 0.95,
    rho_clip_ratio: float = 1.0,
    c_clip_ratio: float = 1.0,
    rho_pg_clip_ratio: float = 1.0,
) -> vtrace_loss:
    """V-trace with discrete actions.

    Args:
        data: Logits [T, B, N]; action, reward and weight [T, B]; value [T + 1, B], 0 from a
            terminal state on.
        gamma: Discount of one step.
        lambda_: Of the trace.
        rho_clip_ratio: Bound on the weight of an error.
        c_clip_ratio: Bound on the weight of a trace.
        rho_pg_clip_ratio: Bound on the weight of an advantage.
    """
    target_output, behaviour_output, action, value, reward, weight = data
    ratio = compute_importance_weights(target_output, behaviour_output, action)
    log_prob, entropy = categorical_log_prob_entropy(target_output, action)
    target, advantage = vtrace(
        reward,
        value[:-1],
        value[1:],
        *_unbroken(reward, gamma),
        ratio,
        lambda_,
        rho_clip_ratio,
        c_clip_ratio,
        rho_pg_clip_ratio,
    )
    return vtrace_loss(
        a2c_policy_loss(log_prob, advantage, weight),
        a2c_value_loss(value[:-1], target, weight),
        weighted_mean(entropy, weight),
    )


def upgo_loss(
    target_output: torch.Tensor,
    rhos: torch.Tensor,
    action: torch.Tensor,
    rewards: torch.Tensor,
    bootstrap_values: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The upgoing policy gradient, undiscounted.

    Logits [T, B, N]; rhos (clipped importance weights), action, rewards and mask (which multiplies
    each row) [T, B]; bootstrap_values [T + 1, B], 0 from a terminal state on.
    """
    value = bootstrap_values[:-1]
    returns = upgo_return(rewards, value, bootstrap_values[1:], *_unbroken(rewards, 1.0))
    same_shape(rhos=rhos, returns=returns)
    advantage = rhos * (returns - value)
    return a2c_policy_loss(categorical_log_prob(target_output, action), advantage, mask)


def coma_error(data: coma_data, gamma: float, lambda_: float) -> coma_loss:
    """COMA.

    Args:
        data: logit, q_value and target_q_value [T, B, A, N] of A agents; action and weight
            [T, B, A]; reward [T, B]. The last step only serves as the bootstrap of the critic.
        gamma: Discount of one step.
        lambda_: Of the critic's TD(lambda).
    """
    logit, action, q_value, target_q_value, reward, weight = data
    steps = len(reward) - 1
    q_taken = select_action(q_value, action)[:-1].reshape(steps, -1)
    target_taken = select_action(target_q_value, action)[1:].reshape(steps, -1)
    shared = reward[:-1, :, None].expand_as(action[:-1]).reshape(steps, -1)
    error = lambda_error(q_taken, shared, target_taken, *_unbroken(shared, gamma), lambda_)
    return coma_loss(
        coma_policy_loss(logit, action, q_value, weight),
        squared_loss(error, None if weight is None else weight[:-1].reshape(steps, -1)),
        weighted_mean(categorical_entropy(logit), weight),
    )


def _discount(done: torch.Tensor, gamma: float, reward: torch.Tensor) -> torch.Tensor:
    return gamma * (1 - done.to(reward.dtype))


def _nstep(
    reward: torch.Tensor, done: torch.Tensor, gamma: float, nstep: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns and discounts [B] of rewards [nstep, B] whose last step may end the episode."""
    if len(reward) != nstep:
        raise ValueError(f"nstep is {nstep}, and reward has {len(reward)} rows; they must agree.")
    returns, discounts, _ = multistep_return(reward, torch.full_like(reward, gamma))
    same_shape(1, done=done, returns=returns)
    return returns, discounts * (1 - done.to(reward.dtype))


def _unbroken(reward: torch.Tensor, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Discount and cut of data that says nothing of ends."""
    return torch.full_like(reward, gamma), torch.zeros_like(reward, dtype=torch.bool)
