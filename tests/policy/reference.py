"""What policies compute, written down again row by row and without guerdon's operations."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import distributions
from torch.nn import functional


@dataclass
class Seen:
    """What passed through one `update`."""

    read: Any = None
    indices: Any = None
    processed: Any = None
    gradient: dict[str, torch.Tensor] | None = None


def watched_update(policy: Any, buffer: Any, reward: Any, batch_size: int = 24) -> Seen:
    """Updates a policy, and keeps what its parts were given and gave."""
    seen = Seen()
    process = policy.process_fn

    def process_fn(batch: Any, view: Any, indices: Any) -> Any:
        seen.read, seen.indices = batch, indices
        seen.processed = process(batch, view, indices)
        return seen.processed

    policy.process_fn = process_fn
    policy.update(10_000 if policy.on_policy else batch_size, buffer, reward)
    del policy.process_fn
    seen.gradient = {
        name: parameter.grad.clone() for name, parameter in critic(policy).named_parameters()
    }
    return seen


def critic(policy: Any) -> Any:
    """The network whose loss uses the reward."""
    return policy.critic if hasattr(policy, "critic") else policy.model


def targets(policy: Any, buffer: Any, seen: Seen, rewards: np.ndarray) -> dict[str, np.ndarray]:
    """What `process_fn` should have computed.

    Args:
        policy: As it was before the update.
        buffer: With the environment's rewards.
        seen: The rows that were read.
        rewards: The resolved reward of every row of the buffer.
    """
    if policy.on_policy:
        return _advantages(policy, buffer, seen.indices[seen.read.mask], rewards)
    first = seen.indices if seen.indices.ndim == 1 else seen.indices[0]
    walks = [_walk(policy, buffer, row, rewards) for row in first]
    sums, discounts, last = (np.array(x) for x in zip(*walks, strict=True))
    obs_next = torch.as_tensor(buffer[last].obs_next)
    with torch.no_grad():
        value = _NEXT_VALUE[policy.config.type](policy, obs_next)
    return {"target": sums + discounts * value.double().numpy()}


def _walk(policy: Any, buffer: Any, row: int, rewards: np.ndarray) -> tuple[float, float, int]:
    total, discount = 0.0, 1.0
    for _ in range(policy.config.n_step):
        last = row
        total += discount * float(rewards[row])
        if buffer[row].terminated:
            return total, 0.0, last
        discount *= policy.config.gamma
        row = buffer.next(row)
        if row == last:
            break
    return total, discount, last


def _advantages(
    policy: Any, buffer: Any, rows: np.ndarray, rewards: np.ndarray
) -> dict[str, np.ndarray]:
    config, gamma, weight = policy.config, policy.config.gamma, np.ones(len(rows))
    if config.type == "impala":  # actions of an older policy
        with torch.no_grad():
            now = _log_prob(policy.model(torch.as_tensor(buffer[rows].obs)), buffer[rows])
        weight = np.exp(now - _stored_log_prob(buffer[rows])).clip(max=1)
    decay = config.trace_lambda if config.type == "impala" else config.gae_lambda
    with torch.no_grad():
        value = policy.model(torch.as_tensor(buffer[rows].obs))["value"].double().numpy()
        after = policy.model(torch.as_tensor(buffer[rows].obs_next))["value"].double().numpy()
    place = {int(row): i for i, row in enumerate(rows)}
    terminated = buffer[rows].terminated
    advantage = np.zeros(len(rows))
    for i in reversed(range(len(rows))):
        row = int(rows[i])
        error = rewards[row] + gamma * after[i] * (not terminated[i]) - value[i]
        advantage[i] = weight[i] * error
        follower = int(buffer.next(row))
        if follower != row:
            advantage[i] += gamma * decay * weight[i] * advantage[place[follower]]
    found = {"advantage": advantage, "returns": advantage + value}
    if config.type == "impala":
        later = [place.get(int(buffer.next(row))) for row in rows]
        follows = np.array([j is not None and j != i for i, j in enumerate(later)])
        after = np.where(follows, found["returns"][[j or 0 for j in later]], after)
        found["advantage"] = rewards[rows] + gamma * after * ~terminated - value
        found["rho"] = weight
    return found | (
        {"log_prob": _stored_log_prob(buffer[rows])} if policy.config.type == "ppo" else {}
    )


def _stored_log_prob(batch: Any) -> np.ndarray:
    """Log-probabilities by the outputs of the actor that were stored with the actions."""
    return _log_prob({name: torch.as_tensor(value) for name, value in batch.policy.items()}, batch)


def _log_prob(output: Any, batch: Any) -> np.ndarray:
    """Log-probabilities by outputs of an actor."""
    if "logit" in output:
        chosen = distributions.Categorical(logits=output["logit"])
        return chosen.log_prob(torch.as_tensor(batch.act)).double().numpy()
    normal = distributions.Normal(output["mu"], output["log_std"].exp())
    return normal.log_prob(torch.as_tensor(batch.policy.raw)).sum(-1).double().numpy()


def _dqn(policy: Any, obs_next: torch.Tensor) -> torch.Tensor:
    target = policy.target(obs_next)["logit"]
    if policy.config.soft:
        temperature = policy.config.temperature
        choice = distributions.Categorical(logits=target / temperature)
        return (choice.probs * target).sum(-1) + temperature * choice.entropy()
    if not policy.config.double:
        return target.max(-1).values
    chosen = policy.model(obs_next)["logit"].argmax(-1)
    return target[torch.arange(len(chosen)), chosen]


def _td3(policy: Any, obs_next: torch.Tensor) -> torch.Tensor:
    config = policy.config
    act = policy.actor_target(obs_next)["action"]
    if config.target_noise:
        noise = torch.empty_like(act).normal_(generator=policy.generator) * config.target_noise
        bound = config.target_noise_clip
        act = (act + noise.clamp(-bound, bound)).clamp(-1, 1)
    return policy.critic_target(obs_next, act)["q_value"].min(0).values


def _sac(policy: Any, obs_next: torch.Tensor) -> torch.Tensor:
    temperature = policy.log_temperature.exp()
    output = policy.actor(obs_next)
    if "logit" in output:
        q_value = policy.critic_target(obs_next)["q_value"].min(0).values
        choice = distributions.Categorical(logits=output["logit"])
        return (choice.probs * q_value).sum(-1) + temperature * choice.entropy()
    mu, std = output["mu"].double(), output["log_std"].double().exp()
    raw = mu + std * torch.empty_like(output["mu"]).normal_(generator=policy.generator)
    squashed = distributions.TransformedDistribution(
        distributions.Normal(mu, std), distributions.TanhTransform()
    )
    act = torch.tanh(raw)
    q_value = policy.critic_target(obs_next, act.float())["q_value"].min(0).values
    return q_value - temperature * squashed.log_prob(act).sum(-1)


_NEXT_VALUE = {"dqn": _dqn, "td3": _td3, "ddpg": _td3, "sac": _sac}


def gradient(policy: Any, seen: Seen, expected: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The gradient of the loss that uses the reward, for targets that were computed by hand."""
    rows, module = seen.processed, critic(policy)
    numbers = {name: torch.as_tensor(x, dtype=torch.float32) for name, x in expected.items()}
    loss = _LOSS[policy.config.type](policy, rows, numbers)
    names = [name for name, _ in module.named_parameters()]
    found = torch.autograd.grad(loss, list(module.parameters()))
    return dict(zip(names, found, strict=True))


def _dqn_loss(policy: Any, rows: Any, expected: dict[str, torch.Tensor]) -> torch.Tensor:
    q_value = policy.model(rows.obs)["logit"][torch.arange(len(rows.act)), rows.act]
    measure = functional.smooth_l1_loss if policy.config.huber else _half_square
    loss = measure(q_value, expected["target"], reduction="none")
    return (loss * rows.weight).mean() if "weight" in rows else loss.mean()


def _half_square(value: torch.Tensor, target: torch.Tensor, reduction: str) -> torch.Tensor:
    return 0.5 * functional.mse_loss(value, target, reduction=reduction)


def _critic_loss(policy: Any, rows: Any, expected: dict[str, torch.Tensor]) -> torch.Tensor:
    if policy.config.type == "sac" and policy.discrete:
        q_value = policy.critic(rows.obs)["q_value"][:, torch.arange(len(rows.act)), rows.act]
    else:
        q_value = policy.critic(rows.obs, rows.act)["q_value"]
    squares = sum(functional.mse_loss(one, expected["target"]) for one in q_value)
    return 0.5 * squares if policy.config.type == "sac" else squares


def _actor_critic_loss(policy: Any, rows: Any, expected: dict[str, torch.Tensor]) -> torch.Tensor:
    config, output = policy.config, policy.model(rows.obs)
    if "logit" in output:
        chosen = distributions.Categorical(logits=output["logit"]).log_prob(rows.act)
    else:
        normal = distributions.Normal(output["mu"], output["log_std"].exp())
        chosen = normal.log_prob(rows.act).sum(-1)
    advantage = expected["advantage"]
    if config.normalize_advantage:
        advantage = (advantage - advantage.mean()) / advantage.std()
    value_loss = functional.mse_loss(output["value"], expected["returns"])
    objective = chosen * advantage * expected.get("rho", 1.0)
    if config.type == "ppo":
        ratio, clip = (chosen - expected["log_prob"]).exp(), config.clip_range
        objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return -objective.mean() + config.value_coefficient * value_loss


_LOSS = {
    "dqn": _dqn_loss,
    "td3": _critic_loss,
    "ddpg": _critic_loss,
    "sac": _critic_loss,
    "ppo": _actor_critic_loss,
    "a2c": _actor_critic_loss,
    "impala": _actor_critic_loss,
}
