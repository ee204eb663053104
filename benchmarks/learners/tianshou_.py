"""Tianshou: its trainers, whose hook before each collection watches."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import DQN, PPO, SAC
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn

from learners.base import DQNSetting, Learner, PPOSetting, SACSetting, StopTraining, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

_ENDLESS = 10**9


def _environments(name: str, n: int, seed: int) -> DummyVectorEnv:
    np.random.seed(seed)  # noqa: NPY002  it draws from it
    torch.manual_seed(seed)
    envs = DummyVectorEnv([lambda: gymnasium.make(name) for _ in range(n)])
    envs.seed(seed)
    return envs


def _net(hidden: tuple[int, ...], out: int = 0, activation: Any = nn.ReLU) -> Net:
    return Net(state_shape=4, action_shape=out, hidden_sizes=hidden, activation=activation)


def _ppo(
    nets: tuple[Net, Net],
    envs: DummyVectorEnv,
    watch: Watch,
    *,
    rows: int,
    batch_size: int,
    epochs: int,
    orthogonal: bool = False,
    learning_rate: float,
    **options: Any,
) -> None:
    actor = DiscreteActor(preprocess_net=nets[0], action_shape=2, softmax_output=False)
    critic = DiscreteCritic(preprocess_net=nets[1])
    for module in (*actor.modules(), *critic.modules()):
        if orthogonal and isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight)
            nn.init.zeros_(module.bias)
    policy = DiscreteActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=gymnasium.spaces.Discrete(2),
    )
    optimizer = AdamOptimizerFactory(lr=learning_rate)
    algorithm = PPO(policy=policy, critic=critic, optim=optimizer, **options)

    def training_fn(_: int, steps: int) -> None:
        if watch(steps, lambda obs: actor(obs)[0].argmax(-1).numpy()):
            raise StopTraining

    parameters = OnPolicyTrainerParams(
        training_collector=Collector(policy, envs, VectorReplayBuffer(rows, len(envs))),
        max_epochs=1,
        epoch_num_steps=_ENDLESS,
        collection_step_num_env_steps=rows,
        update_step_num_repetitions=epochs,
        batch_size=batch_size,
        training_fn=training_fn,
        show_progress=False,
    )
    with contextlib.suppress(StopTraining):
        algorithm.run_training(parameters)


def _off_policy(
    algorithm: Any,
    envs: DummyVectorEnv,
    on_step: Callable[[int], bool],
    *,
    buffer_size: int,
    warmup_steps: int,
    random: bool,
    batch_size: int,
    collect: int,
) -> None:
    collector = Collector(algorithm.policy, envs, VectorReplayBuffer(buffer_size, len(envs)))
    collector.reset()
    if on_step(0):
        return
    collector.collect(n_step=warmup_steps, random=random)

    def training_fn(_: int, steps: int) -> None:
        if on_step(steps + warmup_steps):
            raise StopTraining

    parameters = OffPolicyTrainerParams(
        training_collector=collector,
        max_epochs=1,
        epoch_num_steps=_ENDLESS,
        collection_step_num_env_steps=collect,
        update_step_num_gradient_steps_per_sample=1 / collect,
        batch_size=batch_size,
        training_fn=training_fn,
        show_progress=False,
    )
    with contextlib.suppress(StopTraining):
        algorithm.run_training(parameters)


def _q_policy(hidden: tuple[int, ...], epsilon: float) -> DiscreteQLearningPolicy:
    space = gymnasium.spaces.Discrete(2)
    return DiscreteQLearningPolicy(
        model=_net(hidden, out=2), action_space=space, eps_training=epsilon
    )


def _greedy(policy: DiscreteQLearningPolicy) -> Callable[[np.ndarray], np.ndarray]:
    return lambda obs: policy.model(obs)[0].argmax(-1).numpy()


class _Tianshou(Learner):
    name = "Tianshou"
    packages = ("tianshou",)
    usage: ClassVar = {
        "ppo, dqn, sac": "DummyVectorEnv, its own trainers; without progress bar and logger",
        "dqn": "without clipping of gradients, which its DQN does not have",
        "tuned": "the settings of its own CartPole examples (test/discrete/test_ppo_discrete.py, "
        "test_dqn.py)",
    }

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        envs = _environments("CartPole-v1", setting.n_envs, seed)
        _ppo(
            (_net(setting.hidden, activation=nn.Tanh), _net(setting.hidden, activation=nn.Tanh)),
            envs,
            watch,
            rows=setting.rows,
            batch_size=setting.batch_size,
            epochs=setting.epochs,
            learning_rate=setting.learning_rate,
            gamma=setting.gamma,
            gae_lambda=setting.gae_lambda,
            eps_clip=setting.clip,
            vf_coef=setting.value_weight,
            ent_coef=setting.entropy_weight,
            max_grad_norm=setting.max_grad_norm,
            max_batchsize=setting.rows,
        )

    def dqn(self, setting: DQNSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        envs = _environments("CartPole-v1", setting.n_envs, seed)
        policy = _q_policy(setting.hidden, setting.epsilon)
        algorithm = DQN(
            policy=policy,
            optim=AdamOptimizerFactory(lr=setting.learning_rate),
            gamma=setting.gamma,
            target_update_freq=setting.target_every,
            is_double=False,
        )
        _off_policy(
            algorithm,
            envs,
            lambda steps: watch(steps, _greedy(policy)),
            buffer_size=setting.buffer_size,
            warmup_steps=setting.warmup_steps,
            random=True,
            batch_size=setting.batch_size,
            collect=setting.n_envs,
        )

    def sac(self, setting: SACSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        envs = _environments("Pendulum-v1", setting.n_envs, seed)
        space = gymnasium.make("Pendulum-v1").action_space
        actor = ContinuousActorProbabilistic(
            preprocess_net=Net(state_shape=3, hidden_sizes=setting.hidden),
            action_shape=1,
            unbounded=True,
            conditioned_sigma=True,
        )
        critics = [
            ContinuousCritic(
                preprocess_net=Net(
                    state_shape=3, action_shape=1, hidden_sizes=setting.hidden, concat=True
                )
            )
            for _ in range(2)
        ]
        optimizer = AdamOptimizerFactory(lr=setting.learning_rate)
        algorithm = SAC(
            policy=SACPolicy(actor=actor, action_space=space),
            policy_optim=optimizer,
            critic=critics[0],
            critic_optim=optimizer,
            critic2=critics[1],
            tau=setting.tau,
            gamma=setting.gamma,
            alpha=AutoAlpha(-1.0, 0.0, optimizer),
        )
        _off_policy(
            algorithm,
            envs,
            lambda steps: watch(steps, lambda obs: 2 * actor(obs)[0][0].tanh().numpy()),
            buffer_size=setting.buffer_size,
            warmup_steps=setting.warmup_steps,
            random=True,
            batch_size=setting.batch_size,
            collect=setting.n_envs,
        )

    def tuned_ppo(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        envs = _environments("CartPole-v1", 20, seed)
        shared = _net((64, 64))
        _ppo(
            (shared, shared),
            envs,
            watch,
            rows=2000,
            batch_size=64,
            epochs=10,
            orthogonal=True,
            learning_rate=3e-4,
            gamma=0.99,
            gae_lambda=0.95,
            eps_clip=0.2,
            vf_coef=0.5,
            ent_coef=0.0,
            max_grad_norm=0.5,
            advantage_normalization=False,
        )

    def tuned_dqn(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        envs = _environments("CartPole-v1", 10, seed)
        policy = _q_policy((128, 128, 128, 128), 0.1)
        algorithm = DQN(
            policy=policy,
            optim=AdamOptimizerFactory(lr=1e-3),
            gamma=0.9,
            n_step_return_horizon=3,
            target_update_freq=320,
        )

        def on_step(steps: int) -> bool:
            policy.set_eps_training(0.1 - 0.09 * min(max(steps - 10_000, 0) / 40_000, 1))
            return watch(steps, _greedy(policy))

        _off_policy(
            algorithm,
            envs,
            on_step,
            buffer_size=20_000,
            warmup_steps=640,
            random=False,
            batch_size=64,
            collect=10,
        )


LEARNER = _Tianshou()
