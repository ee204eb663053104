"""DQN written as in the nerveX tutorial, trained on CartPole.

    python examples/tutorial_dqn.py --steps 40000 --seed 0

Imports differ from the tutorial, and so does the time of `_process_transition` and
`_get_train_sample`: the buffer stores the environment's reward, and both are called when it is
read. So this policy works with any reward model.
"""

import argparse
from collections import deque
from copy import deepcopy
from typing import Any

import torch

from guerdon.compat.nervex.armor import Armor
from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.compat.nervex.model import FCDiscreteNet
from guerdon.compat.nervex.policy import CommonPolicy, register_policy
from guerdon.compat.nervex.rl_utils import (
    Adder,
    epsilon_greedy,
    q_nstep_td_data,
    q_nstep_td_error,
)
from guerdon.compat.nervex.torch_utils import Adam
from guerdon.entry import serial_pipeline


class DQNPolicy(CommonPolicy):
    """Double DQN with n-step returns."""

    # --- learn

    def _init_learn(self) -> None:
        self._optimizer = Adam(self._model.parameters(), lr=self._cfg.learn.learning_rate)
        algo_cfg = self._cfg.learn.algo
        self._nstep = algo_cfg.nstep
        self._gamma = algo_cfg.discount_factor
        self._armor = Armor(self._model)
        self._armor.add_model(
            "target", update_type="assign", update_kwargs={"freq": algo_cfg.target_update_freq}
        )
        self._armor.add_plugin("main", "argmax_sample")
        self._armor.add_plugin("main", "grad", enable_grad=True)
        self._armor.add_plugin("target", "grad", enable_grad=False)
        self._armor.mode(train=True)
        self._armor.target_mode(train=True)
        self._armor.reset()
        self._armor.target_reset()
        self._learn_setting_set = {}

    def _forward_learn(self, data: dict[str, Any]) -> dict[str, Any]:
        # Rewards of the n steps after each observation, [n, B].
        reward = data["reward"]
        if len(reward.shape) == 1:
            reward = reward.unsqueeze(1)
        assert reward.shape == (self._cfg.learn.batch_size, self._nstep), reward.shape
        reward = reward.permute(1, 0).contiguous()

        # The online network selects the next action, and the target network evaluates it.
        q_value = self._armor.forward(data["obs"])["logit"]
        target_q_value = self._armor.target_forward(data["next_obs"])["logit"]
        target_q_action = self._armor.forward(data["next_obs"])["action"]
        data_n = q_nstep_td_data(
            q_value,
            target_q_value,
            data["action"],
            target_q_action,
            reward,
            data["done"],
            data["weight"],
        )
        loss = q_nstep_td_error(data_n, self._gamma, nstep=self._nstep)

        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._armor.target_update(self._armor.state_dict()["model"])
        return {"cur_lr": self._optimizer.defaults["lr"], "total_loss": loss.item()}

    # --- collect

    def _init_collect(self) -> None:
        self._traj_len = self._cfg.collect.traj_len
        self._unroll_len = self._cfg.collect.unroll_len
        self._adder = Adder(self._use_cuda, self._unroll_len)
        self._collect_nstep = self._cfg.collect.algo.nstep
        self._collect_armor = Armor(self._model)
        self._collect_armor.add_plugin("main", "eps_greedy_sample")
        self._collect_armor.add_plugin("main", "grad", enable_grad=False)
        self._collect_armor.mode(train=False)
        self._collect_armor.reset()
        self._collect_setting_set = {"eps"}

    def _forward_collect(self, data_id: list[int], data: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return self._collect_armor.forward(data, eps=self._eps)

    def _process_transition(
        self, obs: Any, armor_output: dict[str, Any], timestep: Any
    ) -> dict[str, Any]:
        return AttrDict(
            obs=obs,
            next_obs=timestep.obs,
            action=armor_output["action"],
            reward=timestep.reward,
            done=timestep.done,
        )

    def _get_train_sample(self, traj_cache: deque) -> list[Any] | None:
        return_num = 0 if self._collect_nstep == 1 else self._collect_nstep
        data = self._adder.get_traj(traj_cache, self._traj_len, return_num=return_num)
        data = self._adder.get_nstep_return_data(data, self._collect_nstep, self._traj_len)
        return self._adder.get_train_sample(data)

    # --- eval

    def _init_eval(self) -> None:
        self._eval_armor = Armor(self._model)
        self._eval_armor.add_plugin("main", "argmax_sample")
        self._eval_armor.add_plugin("main", "grad", enable_grad=False)
        self._eval_armor.mode(train=False)
        self._eval_armor.reset()
        self._eval_setting_set = {}

    def _forward_eval(self, data_id: list[int], data: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return self._eval_armor.forward(data)

    # --- command: schedules

    def _init_command(self) -> None:
        eps_cfg = self._cfg.command.eps
        self.epsilon_greedy = epsilon_greedy(
            eps_cfg.start, eps_cfg.end, eps_cfg.decay, eps_cfg.type
        )

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:
        return {"eps": self.epsilon_greedy(command_info["learner_step"])}

    def _create_model_from_cfg(
        self, cfg: AttrDict, model_type: type | None = None
    ) -> torch.nn.Module:
        return (FCDiscreteNet if model_type is None else model_type)(**cfg.model)


register_policy("tutorial_dqn", DQNPolicy)

cartpole_dqn_default_config = {
    "env": {"id": "CartPole-v1", "n_envs": 8},
    "policy": {
        "type": "tutorial_dqn",
        "model": {
            "obs_dim": 4,
            "action_dim": 2,
            "hidden_dim_list": [128, 128, 64],
            "dueling": True,
        },
        "learn": {
            "batch_size": 64,
            "learning_rate": 0.001,
            "algo": {"target_update_freq": 100, "discount_factor": 0.97, "nstep": 1},
        },
        "collect": {"traj_len": 1, "unroll_len": 1, "algo": {"nstep": 1}},
        "command": {"eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 2_000}},
    },
    "collect": {"n_step": 8, "buffer_size": 20_000},
    "learn": {"updates_per_collect": 2},
    "eval": {"every": 2_000, "episodes": 20, "target_return": 195},
}
main_config = cartpole_dqn_default_config


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train until an evaluation has a mean return of 195."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40_000, help="maximum")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nstep", type=int, default=1, help="rewards in a target")
    parser.add_argument("--dir", help="run directory")
    options = parser.parse_args(arguments)
    config = deepcopy(cartpole_dqn_default_config)
    for part in ("learn", "collect"):
        config["policy"][part]["algo"]["nstep"] = options.nstep
    config["run"] = {"dir": options.dir}
    return serial_pipeline(config, seed=options.seed, max_env_step=options.steps)


if __name__ == "__main__":
    main()
