"""Stable-Baselines3: `learn`, with a callback that watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from learners.base import DQNSetting, Learner, PPOSetting, SACSetting, Watch

if TYPE_CHECKING:
    import numpy as np
    from stable_baselines3.common.base_class import BaseAlgorithm

_ENDLESS = 10**9


class _Watching(BaseCallback):
    """Watches before each collection, when all updates of the iteration before are done."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.stop = False

    def _act(self, obs: np.ndarray) -> np.ndarray:
        return self.model.predict(obs, deterministic=True)[0]

    def _on_rollout_start(self) -> None:
        self.stop = self.watch(self.num_timesteps, self._act)

    def _on_step(self) -> bool:
        return not self.stop


def _train(model: BaseAlgorithm, watch: Watch, steps: int = _ENDLESS) -> None:
    model.learn(steps, callback=_Watching(watch))


class _StableBaselines3(Learner):
    name = "SB3"
    packages = ("stable-baselines3",)
    usage: ClassVar = {
        "ppo, dqn, sac": "make_vec_env (DummyVecEnv with Monitor), its default and fastest here",
        "tuned": "the settings of rl-zoo3 for CartPole-v1 (ppo.yml, dqn.yml), with their budgets",
    }

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        layers = list(setting.hidden)
        model = PPO(
            "MlpPolicy",
            make_vec_env("CartPole-v1", setting.n_envs, seed=seed),
            n_steps=setting.n_steps,
            batch_size=setting.batch_size,
            n_epochs=setting.epochs,
            learning_rate=setting.learning_rate,
            gamma=setting.gamma,
            gae_lambda=setting.gae_lambda,
            clip_range=setting.clip,
            vf_coef=setting.value_weight,
            ent_coef=setting.entropy_weight,
            max_grad_norm=setting.max_grad_norm,
            policy_kwargs={"net_arch": {"pi": layers, "vf": layers}, "activation_fn": nn.Tanh},
            seed=seed,
            device="cpu",
        )
        _train(model, watch)

    def dqn(self, setting: DQNSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        model = DQN(
            "MlpPolicy",
            make_vec_env("CartPole-v1", setting.n_envs, seed=seed),
            learning_rate=setting.learning_rate,
            buffer_size=setting.buffer_size,
            learning_starts=setting.warmup_steps,
            batch_size=setting.batch_size,
            gamma=setting.gamma,
            train_freq=1,  # steps of all environments
            gradient_steps=1,
            target_update_interval=setting.target_every * setting.n_envs,  # environment steps
            exploration_initial_eps=setting.epsilon,
            exploration_final_eps=setting.epsilon,
            max_grad_norm=setting.max_grad_norm,
            policy_kwargs={"net_arch": list(setting.hidden)},
            seed=seed,
            device="cpu",
        )
        _train(model, watch)

    def sac(self, setting: SACSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        model = SAC(
            "MlpPolicy",
            make_vec_env("Pendulum-v1", setting.n_envs, seed=seed),
            learning_rate=setting.learning_rate,
            buffer_size=setting.buffer_size,
            learning_starts=setting.warmup_steps,
            batch_size=setting.batch_size,
            tau=setting.tau,
            gamma=setting.gamma,
            policy_kwargs={"net_arch": list(setting.hidden)},
            seed=seed,
            device="cpu",
        )
        _train(model, watch)

    def tuned_ppo(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        model = PPO(
            "MlpPolicy",
            make_vec_env("CartPole-v1", 8, seed=seed),
            n_steps=32,
            batch_size=256,
            gae_lambda=0.8,
            gamma=0.98,
            n_epochs=20,
            ent_coef=0.0,
            learning_rate=lambda left: 0.001 * left,
            clip_range=lambda left: 0.2 * left,
            seed=seed,
            device="cpu",
        )
        _train(model, watch, 100_000)

    def tuned_dqn(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        model = DQN(
            "MlpPolicy",
            make_vec_env("CartPole-v1", 1, seed=seed),
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100_000,
            learning_starts=1_000,
            gamma=0.99,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            exploration_fraction=0.16,
            exploration_final_eps=0.04,
            seed=seed,
            device="cpu",
            policy_kwargs={"net_arch": [256, 256]},
        )
        _train(model, watch, 50_000)


LEARNER = _StableBaselines3()
