"""Losses of nerveX's ``rl_utils``, its noise and exploration, over `guerdon.ops`.

A loss takes a namedtuple and returns 0-dim tensors. Errors of values are squared, and halved in
`ppo_error` and `td_lambda_error` alone, as in nerveX. `done` means terminated: it stops the
bootstrap, so a truncation is not `done`. `weight` multiplies the rows, and may be None. In shapes,
N is the number of actions; values [T + 1, B] are 0 from a terminal state on.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from guerdon import ops
from guerdon.compat.nervex.adder import Adder as Adder
from guerdon.ops import (
    categorical_projection,
    quantile_td_error,
    select_action,
    value_inv_transform,
    value_transform,
)
from guerdon.ops import epsilon_greedy as epsilon_greedy
from guerdon.ops import lambda_returns as generalized_lambda_returns
from guerdon.ops.checks import same_shape, weighted_mean

Criterion = Callable[[Tensor, Tensor], Tensor]
Density = Callable[[Any, Tensor], tuple[Tensor, Tensor]]
Rescale = Callable[[Tensor], Tensor]
SQUARED_ERROR = nn.MSELoss(reduction="none")

nstep_return_data = namedtuple("nstep_return_data", "reward next_value done")
q_1step_td_data = namedtuple("q_1step_td_data", "q next_q act next_act reward done weight")
q_nstep_td_data = namedtuple(
    "q_nstep_td_data", "q next_n_q action next_n_action reward done weight"
)
v_1step_td_data = namedtuple("v_1step_td_data", "v next_v reward done weight")
dist_1step_td_data = namedtuple(
    "dist_1step_td_data", "dist next_dist act next_act reward done weight"
)
dist_nstep_td_data = namedtuple(
    "dist_nstep_td_data", "dist next_n_dist act next_n_act reward done weight"
)
iqn_nstep_td_data = namedtuple(
    "iqn_nstep_td_data", "q next_n_q action next_n_action reward done replay_quantiles weight"
)
td_lambda_data = namedtuple("td_lambda_data", "value reward weight")
gae_data = namedtuple(
    "gae_data", "value next_value reward done traj_flag", defaults=(None, None, None, None)
)
ppo_data = namedtuple(
    "ppo_data", "logit_new logit_old action value_new value_old adv return_ weight"
)
ppo_loss = namedtuple("ppo_loss", "policy_loss value_loss entropy_loss")
ppo_info = namedtuple("ppo_info", "approx_kl clipfrac")
a2c_data = namedtuple("a2c_data", "logit action value adv return_ weight")
a2c_loss = namedtuple("a2c_loss", "policy_loss value_loss entropy_loss")
vtrace_data = namedtuple("vtrace_data", "target_output behaviour_output action value reward weight")
vtrace_loss = namedtuple("vtrace_loss", "policy_loss value_loss entropy_loss")
coma_data = namedtuple("coma_data", "logit action q_value target_q_value reward weight")
coma_loss = namedtuple("coma_loss", "policy_loss q_value_loss entropy_loss")


# --- temporal differences


def _nstep(reward: Tensor, done: Tensor, gamma: float, nstep: int) -> tuple[Tensor, Tensor]:
    """Return n-step returns and discounts [B] of rewards [nstep, B]; the last may be terminal."""
    if len(reward) != nstep:
        raise ValueError(f"nstep is {nstep}, and reward has {len(reward)} rows; they must agree.")
    returns, discounts, _ = ops.multistep_return(reward, torch.full_like(reward, gamma))
    same_shape(1, done=done, returns=returns)
    return returns, discounts * (1 - done.to(reward.dtype))


def nstep_return(data: nstep_return_data, gamma: float, nstep: int) -> Tensor:
    """n-step target [B] of reward [nstep, B], next_value [B] and done [B] after the last step."""
    r_t, discount_t = _nstep(data.reward, data.done, gamma, nstep)
    same_shape(1, next_value=data.next_value, returns=r_t)
    return torch.addcmul(r_t, discount_t, data.next_value)


def q_1step_td_error(
    data: q_1step_td_data, gamma: float, criterion: Criterion = SQUARED_ERROR
) -> Tensor:
    """One-step Q-learning: q and next_q [B, N], all else [B]."""
    rows = q_nstep_td_data(*data._replace(reward=data.reward.unsqueeze(0)))
    return q_nstep_td_error(rows, gamma, 1, criterion)


def q_nstep_td_error(
    data: q_nstep_td_data, gamma: float, nstep: int = 1, criterion: Criterion = SQUARED_ERROR
) -> Tensor:
    """n-step Q-learning: q and next_n_q [B, N], reward [nstep, B], all else [B].

    `criterion` maps prediction and target to errors [B].
    """
    return q_nstep_td_error_with_rescale(data, gamma, nstep, criterion, _same, _same)


def q_nstep_td_error_with_rescale(
    data: q_nstep_td_data,
    gamma: float,
    nstep: int = 1,
    criterion: Criterion = SQUARED_ERROR,
    trans_fn: Rescale | None = None,
    inv_trans_fn: Rescale | None = None,
) -> Tensor:
    """n-step Q-learning of rescaled values, by `value_transform` and its inverse by default."""
    q, next_n_q, action, next_n_action, reward, done, weight = data
    same_shape(1, action=action, next_n_action=next_n_action, weight=weight)
    value = (inv_trans_fn or value_inv_transform)(select_action(next_n_q, next_n_action))
    target = nstep_return(nstep_return_data(reward, value, done), gamma, nstep)
    target = (trans_fn or value_transform)(target).detach()
    return weighted_mean(criterion(select_action(q, action), target), weight)


def _same(value: Tensor) -> Tensor:
    return value


def v_1step_td_error(
    data: v_1step_td_data, gamma: float, criterion: Criterion = SQUARED_ERROR
) -> Tensor:
    """One-step TD: all [B]; done may be None."""
    v, next_v, reward, done, weight = data
    done = torch.zeros_like(v) if done is None else done
    same_shape(1, v=v, next_v=next_v, done=done, weight=weight)
    target = nstep_return(nstep_return_data(reward[None], next_v, done), gamma, 1)
    return weighted_mean(criterion(v, target.detach()), weight)


def dist_1step_td_error(
    data: dist_1step_td_data, gamma: float, v_min: float, v_max: float, n_atom: int
) -> Tensor:
    """C51: dist and next_dist are probabilities [B, N, n_atom], all else [B]."""
    rows = dist_nstep_td_data(*data._replace(reward=data.reward.unsqueeze(0)))
    return dist_nstep_td_error(rows, gamma, v_min, v_max, n_atom)


def dist_nstep_td_error(
    data: dist_nstep_td_data, gamma: float, v_min: float, v_max: float, n_atom: int, nstep: int = 1
) -> Tensor:
    """n-step C51: reward [nstep, B], else as `dist_1step_td_error`."""
    dist, next_n_dist, act, next_n_act, reward, done, weight = data
    same_shape(1, act=act, next_n_act=next_n_act, done=done, weight=weight)
    support = torch.linspace(v_min, v_max, n_atom, dtype=dist.dtype, device=dist.device)
    # Softmax in float32 underflows to exactly 0, whose logarithm is not finite.
    log_prob = select_action(dist, act).clamp(min=torch.finfo(dist.dtype).tiny).log()
    r_t, discount_t = _nstep(reward, done, gamma, nstep)
    target = categorical_projection(
        select_action(next_n_dist, next_n_act), r_t, discount_t, support
    )
    same_shape(2, log_prob=log_prob, target=target)
    return weighted_mean(-(target * log_prob).sum(-1), weight)


def iqn_nstep_td_error(
    data: iqn_nstep_td_data, gamma: float, nstep: int = 1, kappa: float = 1.0
) -> Tensor:
    """n-step IQN: https://arxiv.org/abs/1806.06923.

    q is [n_tau, B, N]; next_n_q [n_tau', B, N]; replay_quantiles has the n_tau * B fractions of q
    in that order; reward is [nstep, B], all else [B]. See `quantile_td_error` for `kappa`.
    """
    q, next_n_q, action, next_n_action, reward, done, replay_quantiles, weight = data
    same_shape(1, action=action, next_n_action=next_n_action, done=done, weight=weight)
    quantile_tm1 = select_action(q.permute(1, 2, 0), action)
    quantile_t = select_action(next_n_q.permute(1, 2, 0), next_n_action)
    tau, returns = replay_quantiles.reshape(q.shape[:2]).T, _nstep(reward, done, gamma, nstep)
    return weighted_mean(quantile_td_error(quantile_tm1, tau, *returns, quantile_t, kappa), weight)


def td_lambda_error(data: td_lambda_data, gamma: float = 0.9, lambda_: float = 0.8) -> Tensor:
    """TD(lambda): value [T + 1, B], reward and weight [T, B]."""
    value, reward, weight = data
    target = generalized_lambda_returns(value, reward, gamma, lambda_)
    return ops.squared_loss(target - value[:-1], weight)


def gae(data: gae_data, gamma: float = 0.99, lambda_: float = 0.97) -> Tensor:
    """Generalized advantages [T, B] of value [T + 1, B] and reward [T, B].

    Or of all fields, [T, B]; ``traj_flag`` is whether the trajectory ends after this row for any
    reason, by default ``done``.
    """
    value, next_value, reward, done, traj_flag = data
    if done is None:
        reward = next_value if reward is None else reward
        value, next_value, done = value[:-1], value[1:], torch.zeros_like(reward)
    cut = (done if traj_flag is None else traj_flag).bool()
    discount = gamma * (1 - done.to(reward.dtype))
    with torch.no_grad():
        return ops.generalized_advantage(reward, value, next_value, discount, cut, lambda_)


# --- policies, with discrete actions


def ppo_error(
    data: ppo_data,
    clip_ratio: float = 0.2,
    use_value_clip: bool = True,
    dual_clip: float | None = None,
    density: Density = ops.categorical_log_prob_entropy,
) -> tuple[ppo_loss, ppo_info]:
    """PPO: logits [B, N], all else [B]; losses, and two metrics.

    `density` maps logits and actions to log-probabilities and entropies.
    """
    log_prob, entropy = density(data.logit_new, data.action)
    old, weight = density(data.logit_old, data.action)[0].detach(), data.weight
    clip = clip_ratio if use_value_clip else None
    losses = ppo_loss(
        ops.ppo_policy_loss(log_prob, old, data.adv, clip_ratio, weight, dual_clip=dual_clip),
        ops.ppo_value_loss(data.value_new, data.return_, data.value_old, clip, weight),
        weighted_mean(entropy, weight),
    )
    kl, clipped = ops.approx_kl(log_prob, old), ops.clip_fraction(log_prob, old, clip_ratio)
    return losses, ppo_info(kl, clipped)


def _gaussian(logit: tuple[Tensor, Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
    mu, sigma = logit
    log_prob = ops.gaussian_log_prob(mu, sigma.log(), action.reshape(mu.shape))
    return log_prob, ops.gaussian_entropy(sigma.log())


ppo_error_continous = partial(ppo_error, density=_gaussian)
"""PPO of continuous actions: logits are (mu, sigma); these and the action are [B, N]."""


def a2c_error(data: a2c_data) -> a2c_loss:
    """A2C: logit [B, N], all else [B]."""
    logit, action, value, adv, return_, weight = data
    log_prob, entropy = ops.categorical_log_prob_entropy(logit, action)
    return a2c_loss(
        ops.a2c_policy_loss(log_prob, adv, weight),
        2 * ops.a2c_value_loss(value, return_, weight),
        weighted_mean(entropy, weight),
    )


def compute_importance_weights(
    target_output: Tensor, behaviour_output: Tensor, action: Tensor, requires_grad: bool = False
) -> Tensor:
    """Ratios of probabilities [T, B] from the logits [T, B, N] of the two policies."""
    now, before = (
        ops.categorical_log_prob(logit, action) for logit in (target_output, behaviour_output)
    )
    return torch.exp(now - before) if requires_grad else torch.exp(now - before).detach()


def vtrace_error(
    data: vtrace_data,
    gamma: float = 0.99,
    lambda_: float = 0.95,
    rho_clip_ratio: float = 1.0,
    c_clip_ratio: float = 1.0,
    rho_pg_clip_ratio: float = 1.0,
) -> vtrace_loss:
    """V-trace: https://arxiv.org/abs/1802.01561, section 4.1.

    Logits are [T, B, N]; action, reward and weight [T, B]; value [T + 1, B]. The ratios bound the
    importance weights of TD errors, of traces, and of advantages.
    """
    target_output, behaviour_output, action, value, reward, weight = data
    log_prob, entropy = ops.categorical_log_prob_entropy(target_output, action)
    ratio = compute_importance_weights(target_output, behaviour_output, action)
    v_tm1, v_t = value[:-1].detach(), value[1:].detach()
    never = torch.zeros_like(reward, dtype=torch.bool)
    target, advantage, _ = ops.vtrace(
        reward, v_tm1, v_t, torch.full_like(reward, gamma), never, ratio.log(),
        rho_clip=rho_clip_ratio, c_clip=c_clip_ratio, trace_lambda=lambda_,
    )  # fmt: skip
    return vtrace_loss(
        ops.a2c_policy_loss(log_prob, ratio.clamp(max=rho_pg_clip_ratio) * advantage, weight),
        2 * ops.a2c_value_loss(value[:-1], target, weight),
        weighted_mean(entropy, weight),
    )


def upgo_loss(
    target_output: Tensor, rhos: Tensor, action: Tensor, rewards: Tensor, bootstrap_values: Tensor,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Upgoing policy gradient: https://doi.org/10.1038/s41586-019-1724-z.

    The undiscounted return bootstraps before the first step that is worse than expected. Logits
    are [T, B, N], values [T + 1, B], all else [T, B]; `mask` multiplies the rows.
    """
    v_tm1, v_t = bootstrap_values[:-1].detach(), bootstrap_values[1:].detach()
    same_shape(2, rhos=rhos, rewards=rewards, values=v_tm1)
    follow = torch.zeros_like(rewards, dtype=torch.bool)
    follow[:-1] = (rewards + v_t >= v_tm1)[1:]
    returns = generalized_lambda_returns(bootstrap_values, rewards, 1.0, follow)
    log_prob = ops.categorical_log_prob(target_output, action)
    return ops.a2c_policy_loss(log_prob, rhos * (returns - v_tm1), mask)


def coma_error(data: coma_data, gamma: float, lambda_: float) -> coma_loss:
    """Counterfactual multi-agent policy gradients: https://arxiv.org/abs/1705.08926.

    Logits and Q-values are [T, B, A, N] of A agents, action and weight [T, B, A], reward [T, B];
    the last step only bootstraps the critic, which learns by TD(lambda).
    """
    logit, action, q_value, target_q_value, reward, weight = data
    same_shape(logit=logit, q_value=q_value, target_q_value=target_q_value)
    log_prob, entropy = ops.categorical_log_prob_entropy(logit, action)
    q_taken = select_action(q_value, action)
    advantage = (q_taken - (torch.softmax(logit, -1) * q_value).sum(-1)).detach()
    rewards = reward[:-1, :, None].expand_as(action[:-1]).flatten(1)
    target = select_action(target_q_value, action).flatten(1)
    returns = generalized_lambda_returns(target, rewards, gamma, lambda_)
    error = returns - q_taken[:-1].flatten(1)
    return coma_loss(
        ops.a2c_policy_loss(log_prob, advantage, weight),
        2 * ops.squared_loss(error, None if weight is None else weight[:-1].flatten(1)),
        weighted_mean(entropy, weight),
    )


# --- risk measures of IQN: https://arxiv.org/abs/1806.06923, section 3.1


def _cpw(tau: Tensor, eta: float = 0.71) -> Tensor:
    risen: Tensor = tau**eta
    return risen / (risen + (1 - tau) ** eta) ** (1 / eta)


def _power(tau: Tensor, eta: float = -2.0) -> Tensor:
    exponent = 1 / (1 + abs(eta))
    return tau**exponent if eta >= 0 else 1 - (1 - tau) ** exponent


beta_function_map: dict[str, Callable[..., Tensor]] = {
    "uniform": lambda tau: tau,
    "CPW": _cpw,
    "CVaR": lambda tau, eta=0.71: eta * tau,
    "Wang": lambda tau, eta=-0.75: torch.special.ndtr(torch.special.ndtri(tau) + eta),
    "Pow": _power,
}
"""Distortions of the fractions tau by their names in the paper; all but the first have `eta`."""


# --- noise on actions


class GaussianNoise:
    """Independent noise of mean `mu` and standard deviation `sigma`: call it with a shape."""

    generator: torch.Generator | None = None  # on the device of the noise; or torch's global one

    def __init__(self, mu: float = 0.0, sigma: float = 1.0) -> None:
        self._mu, self._sigma = mu, sigma

    def __call__(self, shape: Sequence[int], device: Any = "cpu") -> Tensor:
        """Draw noise."""
        normal = torch.empty(tuple(shape), device=device).normal_(generator=self.generator)
        return normal * self._sigma + self._mu

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Restart the noise, in all rows or in some."""


class OUNoise(GaussianNoise):
    """Ornstein-Uhlenbeck process, one path per row: dx = theta (mu - x) dt + sigma dW, from x0."""

    def __init__(
        self, mu: float = 0.0, sigma: float = 0.3, theta: float = 0.15, dt: float = 0.01,
        x0: float = 0,
    ) -> None:  # fmt: skip
        super().__init__(0.0, sigma * dt**0.5)
        self._mean, self._rate, self._x0 = mu, theta * dt, float(x0)
        self._x: Tensor | None = None

    def __call__(self, shape: Sequence[int], device: Any = "cpu") -> Tensor:
        """Advance the paths, and return where they are."""
        step, x = super().__call__(shape, device), self._x
        if x is None or x.shape != step.shape:
            x = torch.full_like(step, self._x0)
        self._x = x + self._rate * (self._mean - x) + step
        return self._x

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """See `GaussianNoise`."""
        if rows is None or self._x is None:
            self._x = None
            return
        inside = [row for row in rows if row < len(self._x)]
        index = torch.tensor(inside, dtype=torch.int64, device=self._x.device)
        self._x = self._x.index_fill(0, index, self._x0)  # not in place: it may be in use


noise_mapping: dict[str, type[GaussianNoise]] = {"gauss": GaussianNoise, "ou": OUNoise}
"""Kinds of noise by name; add one of your own here."""


def create_noise_generator(
    noise_type: str, noise_kwargs: Mapping[str, Any] | None = None
) -> GaussianNoise:
    """Make noise of a type, ``gauss`` or ``ou``, with its arguments."""
    if noise_type not in noise_mapping:
        names = ", ".join(map(repr, noise_mapping))
        raise KeyError(f"unknown noise_type {noise_type!r}: use one of {names}")
    return noise_mapping[noise_type](**(noise_kwargs or {}))
