"""DI-engine: its task with the middleware of its examples, and one more that watches."""

from __future__ import annotations

import copy
import importlib.metadata
from typing import TYPE_CHECKING, Any, ClassVar

import gym
import torch
from ding.config import compile_config
from ding.data import DequeBuffer
from ding.envs import BaseEnvManagerV2, DingEnvWrapper
from ding.framework import task
from ding.framework.context import OnlineRLContext
from ding.framework.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    multistep_trainer,
)
from ding.model import DQN, VAC
from ding.policy import DQNPolicy, PPOPolicy
from ding.utils import set_pkg_seed
from ditk import logging
from dizoo.classic_control.cartpole.config.cartpole_dqn_config import create_config as dqn_parts
from dizoo.classic_control.cartpole.config.cartpole_dqn_config import main_config as dqn_config
from dizoo.classic_control.cartpole.config.cartpole_ppo_config import create_config as ppo_parts
from dizoo.classic_control.cartpole.config.cartpole_ppo_config import main_config as ppo_config
from torch import nn

from learners.base import DQNSetting, Learner, PPOSetting, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

_ITS_OWN = ", ".join(
    f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy", "gym")
)


def _compiled(config: Any, parts: Any, seed: int) -> Any:
    return compile_config(config, create_cfg=parts, seed=seed, auto=True, save_cfg=False)


def _changed(config: Any, n_envs: int, **policy: Any) -> Any:
    """One of its configs with other values; sections are merged."""
    config = copy.deepcopy(config)
    config.env.collector_env_num = n_envs
    for key, value in policy.items():
        if isinstance(value, dict):
            config.policy[key].update(value)
        else:
            config.policy[key] = value
    return config


def _environments(config: Any) -> BaseEnvManagerV2:
    def make() -> DingEnvWrapper:
        return DingEnvWrapper(gym.make("CartPole-v1"))

    number = config.env.collector_env_num
    return BaseEnvManagerV2(env_fn=[make] * number, cfg=config.env.manager)


def _watching(watch: Watch, act: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], None]:
    def middleware(context: OnlineRLContext) -> None:
        task.finish = watch(context.env_step, act)

    return middleware


def _ppo(config: Any, watch: Watch) -> None:
    logging.getLogger().setLevel(logging.ERROR)
    set_pkg_seed(config.seed, use_cuda=False)
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        model = VAC(**config.policy.model, activation=nn.Tanh())
        policy = PPOPolicy(config.policy, model=model)

        def act(obs: np.ndarray) -> np.ndarray:
            output = model(torch.from_numpy(obs), mode="compute_actor")
            return output["logit"].argmax(-1).numpy()

        if not watch(0, act):
            task.use(StepCollector(config, policy.collect_mode, _environments(config)))
            task.use(gae_estimator(config, policy.collect_mode))
            task.use(multistep_trainer(policy.learn_mode, log_freq=10**9))
            task.use(_watching(watch, act))
            task.run()


def _dqn(config: Any, watch: Watch, warmup_steps: int) -> None:
    logging.getLogger().setLevel(logging.ERROR)
    set_pkg_seed(config.seed, use_cuda=False)
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        model = DQN(**config.policy.model)
        policy = DQNPolicy(config.policy, model=model)
        buffer = DequeBuffer(size=config.policy.other.replay_buffer.replay_buffer_size)

        def act(obs: np.ndarray) -> np.ndarray:
            return model(torch.from_numpy(obs))["logit"].argmax(-1).numpy()

        if not watch(0, act):
            task.use(eps_greedy_handler(config))
            task.use(
                StepCollector(
                    config,
                    policy.collect_mode,
                    _environments(config),
                    random_collect_size=warmup_steps,
                )
            )
            task.use(data_pusher(config, buffer))
            task.use(OffPolicyLearner(config, policy.learn_mode, buffer, log_freq=10**9))
            task.use(_watching(watch, act))
            task.run()


class _DIEngine(Learner):
    name = "DI-engine"
    packages = ("DI-engine",)
    usage: ClassVar = {
        "ppo, dqn": "the middleware of ding/example/ppo.py and dqn.py, less evaluator and logger; "
        f"BaseEnvManagerV2 on CartPole-v1 of gym; in an environment of its own, with {_ITS_OWN}",
        "dqn": "without clipping of gradients, which its DQN does not have",
    }

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        first, second = setting.hidden
        config = _changed(
            ppo_config,
            setting.n_envs,
            recompute_adv=False,
            model={
                "encoder_hidden_size_list": [first],
                "actor_head_hidden_size": second,
                "critic_head_hidden_size": second,
                "share_encoder": False,
            },
            learn={
                "epoch_per_collect": setting.epochs,
                "batch_size": setting.batch_size,
                "learning_rate": setting.learning_rate,
                "value_weight": setting.value_weight,
                "entropy_weight": setting.entropy_weight,
                "clip_ratio": setting.clip,
                "value_norm": False,
                "grad_clip_type": "clip_norm",
                "grad_clip_value": setting.max_grad_norm,
            },
            collect={
                "n_sample": setting.rows,
                "discount_factor": setting.gamma,
                "gae_lambda": setting.gae_lambda,
            },
        )
        _ppo(_compiled(config, ppo_parts, seed), watch)

    def dqn(self, setting: DQNSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        first, second = setting.hidden
        epsilon = setting.epsilon
        config = _changed(
            dqn_config,
            setting.n_envs,
            discount_factor=setting.gamma,
            model={
                "encoder_hidden_size_list": [first],
                "head_hidden_size": second,
                "head_layer_num": 1,
                "dueling": False,
            },
            learn={
                "update_per_collect": 1,
                "batch_size": setting.batch_size,
                "learning_rate": setting.learning_rate,
                "target_update_freq": setting.target_every,
            },
            collect={"n_sample": setting.n_envs},
            other={
                "eps": {"type": "linear", "start": epsilon, "end": epsilon, "decay": 1},
                "replay_buffer": {"replay_buffer_size": setting.buffer_size},
            },
        )
        _dqn(_compiled(config, dqn_parts, seed), watch, setting.warmup_steps)


LEARNER = _DIEngine()
