"""guerdon: a config, its parts, and the trainers, whose monitor watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from guerdon.config import compose
from guerdon.data import Batch
from guerdon.training.monitor import Budget, Monitor
from guerdon.training.parts import make_parts
from guerdon.training.trainers import run_trainer
from learners.base import DQNSetting, Learner, PPOSetting, SACSetting, Watch

if TYPE_CHECKING:
    import numpy as np

    from guerdon.config import GuerdonConfig

_ENDLESS = 10**9


def _train(config: GuerdonConfig, watch: Watch) -> None:
    """What `guerdon.train` does, without a run folder and without evaluations of its own."""
    parts = make_parts(config)
    policy = parts.policy

    def act(obs: np.ndarray) -> np.ndarray:
        policy.eval()
        actions = policy(Batch(obs=obs)).act
        policy.train()
        return actions

    def interrupted() -> bool:
        return watch(monitor.progress.env_steps, act)

    monitor = Monitor(Budget(max_steps=config.run.max_steps), interrupted=interrupted)
    run_trainer(parts, config, monitor)
    parts.close()


class _Guerdon(Learner):
    name = "guerdon"
    packages = ("guerdon",)
    usage: ClassVar = {
        "ppo, dqn, sac": "a config, and onpolicy_trainer or offpolicy_trainer with the parts made "
        "of it; Gymnasium's own CartPole vector; rows that reset an environment are neither "
        "learned from nor counted",
        "tuned": "the presets cartpole_ppo and cartpole_dqn",
        "gail": "the preset cartpole_fixed_ppo_gail, which has 10 demonstrations",
    }

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        policy = {
            "type": "ppo",
            "learning_rate": setting.learning_rate,
            "gamma": setting.gamma,
            "gae_lambda": setting.gae_lambda,
            "clip_range": setting.clip,
            "value_coefficient": setting.value_weight,
            "entropy_coefficient": setting.entropy_weight,
            "max_grad_norm": setting.max_grad_norm,
            "model": {
                "hidden": list(setting.hidden),
                "activation": "tanh",
                "normalize_obs": False,
            },
        }
        config = {
            "env": {"id": "CartPole-v1", "n_envs": setting.n_envs},
            "policy": policy,
            "collect": {"n_step": setting.rows},
            "learn": {"batch_size": setting.batch_size, "repeat": setting.epochs},
            "run": {"max_steps": _ENDLESS},
            "seed": seed,
        }
        _train(compose(config), watch)

    def dqn(self, setting: DQNSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        policy = {
            "type": "dqn",
            "learning_rate": setting.learning_rate,
            "gamma": setting.gamma,
            "double": False,
            "target_update_every": setting.target_every,
            "epsilon": {"start": setting.epsilon, "end": setting.epsilon},
            "max_grad_norm": setting.max_grad_norm,
            "model": {"hidden": list(setting.hidden), "activation": "relu"},
        }
        _train(compose(_off_policy("CartPole-v1", policy, setting, seed)), watch)

    def sac(self, setting: SACSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        policy = {
            "type": "sac",
            "learning_rate": setting.learning_rate,
            "gamma": setting.gamma,
            "tau": setting.tau,
            "model": {"hidden": list(setting.hidden), "activation": "relu"},
        }
        _train(compose(_off_policy("Pendulum-v1", policy, setting, seed)), watch)

    def tuned_ppo(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        _train(compose("cartpole_ppo", [f"seed={seed}"]), watch)

    def tuned_dqn(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        _train(compose("cartpole_dqn", [f"seed={seed}"]), watch)

    def gail(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        _train(compose("cartpole_fixed_ppo_gail", [f"seed={seed}"]), watch)


def _off_policy(
    env_id: str, policy: dict[str, Any], setting: DQNSetting | SACSetting, seed: int
) -> dict[str, Any]:
    return {
        "env": {"id": env_id, "n_envs": setting.n_envs},
        "policy": policy,
        "collect": {
            "n_step": 1,  # one step of all environments: rows that reset one do not count
            "warmup_steps": setting.warmup_steps,
            "buffer_size": setting.buffer_size,
        },
        "learn": {"batch_size": setting.batch_size, "updates_per_collect": 1},
        "run": {"max_steps": _ENDLESS},
        "seed": seed,
    }


LEARNER = _Guerdon()
