"""skrl: its sequential trainer and agents, which watch after each interaction."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import torch
from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

from learners.base import DQNSetting, Learner, MissingError, PPOSetting, StopTraining, Watch

if TYPE_CHECKING:
    import numpy as np

_ENDLESS = 10**9
_SILENT = {"write_interval": 0, "checkpoint_interval": 0}


def _mlp(hidden: tuple[int, ...], out: int, activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip((4, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], out))


class _Actor(CategoricalMixin, Model):
    def __init__(self, env: Any, net: nn.Module) -> None:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, **spaces, device="cpu")
        CategoricalMixin.__init__(self)
        self.net = net

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:  # noqa: ARG002
        return self.net(inputs["observations"]), {}


class _Values(DeterministicMixin, Model):
    def __init__(self, env: Any, net: nn.Module) -> None:
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, **spaces, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = net

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:  # noqa: ARG002
        return self.net(inputs["observations"]), {}


def _environments(n: int, seed: int) -> Any:
    set_seed(seed)
    return wrap_env(gymnasium.make_vec("CartPole-v1", n, "vector_entry_point"), verbose=False)


def _train(agent_class: Any, env: Any, watch: Watch, every: int, **options: Any) -> None:
    net = next(iter(options["models"].values())).net

    def act(obs: np.ndarray) -> np.ndarray:
        return net(torch.from_numpy(obs)).argmax(-1).numpy()

    class Watching(agent_class):
        def post_interaction(self, *, timestep: int, timesteps: int) -> None:
            super().post_interaction(timestep=timestep, timesteps=timesteps)
            if (timestep + 1) % every == 0 and watch((timestep + 1) * env.num_envs, act):
                raise StopTraining

    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    agent = Watching(**options, **spaces, device="cpu")
    settings = {"timesteps": _ENDLESS, "headless": True, "disable_progressbar": True}
    trainer = SequentialTrainer(env=env, agents=agent, cfg=settings)
    if not watch(0, act):
        with contextlib.suppress(StopTraining):
            trainer.train()


class _Skrl(Learner):
    name = "skrl"
    packages = ("skrl",)
    usage: ClassVar = {
        "ppo, dqn": "Gymnasium's own CartPole vector, its fastest way; the rows that reset an "
        "environment are learned from and counted as steps",
        "ppo": "advantages are normalised once a rollout",
        "dqn": "without clipping of gradients, which its DQN does not have",
        "tuned": "dqn: the settings of its example torch_gymnasium_cartpole_vector_dqn.py",
    }

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        env = _environments(setting.n_envs, seed)
        models = {
            "policy": _Actor(env, _mlp(setting.hidden, 2, nn.Tanh)),
            "value": _Values(env, _mlp(setting.hidden, 1, nn.Tanh)),
        }
        config = PPO_CFG(
            rollouts=setting.n_steps,
            learning_epochs=setting.epochs,
            mini_batches=setting.minibatches,
            discount_factor=setting.gamma,
            gae_lambda=setting.gae_lambda,
            learning_rate=setting.learning_rate,
            grad_norm_clip=setting.max_grad_norm,
            ratio_clip=setting.clip,
            value_clip=0.0,
            entropy_loss_scale=setting.entropy_weight,
            value_loss_scale=setting.value_weight,
            time_limit_bootstrap=True,
            experiment=_SILENT,
        )
        memory = RandomMemory(memory_size=setting.n_steps, num_envs=setting.n_envs, device="cpu")
        _train(PPO, env, watch, setting.n_steps, models=models, memory=memory, cfg=config)

    def dqn(self, setting: DQNSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        env = _environments(setting.n_envs, seed)
        models = {
            name: _Values(env, _mlp(setting.hidden, 2, nn.ReLU))
            for name in ("q_network", "target_q_network")
        }
        config = DQN_CFG(
            batch_size=setting.batch_size,
            discount_factor=setting.gamma,
            polyak=1.0,
            learning_rate=setting.learning_rate,
            random_timesteps=setting.warmup_steps // setting.n_envs,
            learning_starts=setting.warmup_steps // setting.n_envs,
            target_update_interval=setting.target_every,
            exploration_scheduler=lambda *_: setting.epsilon,
            experiment=_SILENT,
        )
        size = setting.buffer_size // setting.n_envs
        memory = RandomMemory(memory_size=size, num_envs=setting.n_envs, device="cpu")
        _train(DQN, env, watch, 1, models=models, memory=memory, cfg=config)

    def tuned_ppo(self, seed: int, watch: Watch) -> None:  # noqa: ARG002
        """See `Learner`."""
        raise MissingError("no PPO setting published for CartPole")

    def tuned_dqn(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        env = _environments(5, seed)
        models = {
            name: _Values(env, _mlp((64, 64), 2, nn.ReLU))
            for name in ("q_network", "target_q_network")
        }
        for model in models.values():
            model.init_parameters(method_name="normal_", mean=0.0, std=0.1)
        config = DQN_CFG(
            learning_starts=100,
            exploration_scheduler=lambda timestep, _: max(0.04, 1 - timestep / 1500 * 0.96),
            experiment=_SILENT,
        )
        options = {"replacement": False, "device": "cpu"}
        memory = RandomMemory(memory_size=200_000, num_envs=5, **options)
        _train(DQN, env, watch, 1, models=models, memory=memory, cfg=config)


LEARNER = _Skrl()
