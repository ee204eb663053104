"""What a policy in the style of the nerveX tutorial may define, and has where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import nn

from guerdon.compat.nervex.adder import Adder
from guerdon.compat.nervex.armor import Armor
from guerdon.nn import DeterministicActor, ModelConfig, QNetwork, create_model

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Collection, Mapping

    from guerdon.compat.nervex.samples import Timestep, Transition
    from guerdon.config.attr_dict import AttrDict


class CommonHooks:
    """The methods of `CommonPolicy` that are its class's own.

    `_init_learn`, `_init_collect`, `_init_eval` and `_init_command` are called once, in this order,
    when there is a network. With what they have by default, Discrete actions are drawn from the
    network's ``logit``, and noise is added to those of a Box.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    _cfg: AttrDict
    _use_cuda: bool
    _model: nn.Module
    _armor: Armor
    _collect_armor: Armor
    _eval_armor: Armor
    _adder: Adder
    _optimizer: Any
    _traj_len: float
    _unroll_len: int
    _collect_nstep: int
    _learn_setting_set: Collection[str]
    _collect_setting_set: Collection[str]
    _eval_setting_set: Collection[str]

    # --- learn

    def _init_learn(self) -> None:
        """Makes what `_forward_learn` needs: optimizers, and armors of the network."""
        rate = self._cfg.learn.get("learning_rate", self._cfg.learning_rate)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=rate)
        self._armor = Armor(self._model)

    def _forward_learn(self, data: dict[str, Any]) -> dict[str, Any]:
        """Learns from samples; this one a class has to define.

        Args:
            data: Tensors [B, ...] under the keys of the samples, [T, B, ...] where they are
                unrolled; and ``weight``, importance weights [B] or None.

        Returns:
            Numbers to log; and ``priority``, an error a sample, if the policy is prioritized.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define _forward_learn(data)")

    def _get_setting_learn(self, command_info: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """As `_get_setting_collect`, for learning; the names are those of `_learn_setting_set`."""
        return {}

    # --- collect

    def _init_collect(self) -> None:
        """Makes what `_forward_collect` and `_get_train_sample` need.

        `_unroll_len` and `_collect_nstep` say how long a segment has to be for one sample.
        """
        collect = self._cfg.collect
        self._traj_len = float(collect.get("traj_len", "inf"))
        self._unroll_len = collect.get("unroll_len", 1)
        self._collect_nstep = collect.get("algo", {}).get("nstep", 1)
        self._adder = Adder(self._use_cuda, self._unroll_len)
        self._collect_armor = Armor(self._model)
        discrete = isinstance(self.action_space, spaces.Discrete)
        self._collect_armor.add_plugin("main", "multinomial_sample" if discrete else "action_noise")

    def _forward_collect(self, data_id: list[int], data: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Acts with exploration.

        Args:
            data_id: The environments that the observations are of.
            data: ``obs``.

        Returns:
            ``action``, and whatever else `_process_transition` wants.
        """
        settings = {name: getattr(self, f"_{name}") for name in self._collect_setting_set}
        output: dict[str, Any] = self._collect_armor.forward(data, **settings)
        return output

    def _reset_collect(self, data_id: list[int] | None = None) -> None:
        """Episodes begin: in these rows, or everywhere."""
        if hasattr(self, "_collect_armor"):
            self._collect_armor.reset(data_id=data_id)

    def _process_transition(
        self, obs: Any, armor_output: Mapping[str, Any], timestep: Timestep
    ) -> dict[str, Any]:
        """A transition as `_get_train_sample` gets it.

        Args:
            obs: What was acted on.
            armor_output: What `_forward_collect` returned. What this method reads of it is stored.
            timestep: What came of it: ``obs``, ``reward``, ``done``.
        """
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            "action": armor_output["action"],
            "reward": timestep.reward,
            "done": timestep.done,
        }

    def _get_train_sample(self, traj_cache: deque[Transition]) -> list[Any] | None:
        """Samples from transitions in time order, which it takes out of the cache.

        Returns:
            Dictionaries, all with the same keys; None where the transitions are too few.
        """
        ahead = 0 if self._collect_nstep == 1 else self._collect_nstep
        data = self._adder.get_traj(traj_cache, self._traj_len, return_num=ahead)
        data = self._adder.get_nstep_return_data(data, self._collect_nstep, self._traj_len)
        return self._adder.get_train_sample(data)

    def _get_segment_len(self) -> int:
        """How many transitions in a row are read for one sample."""
        names = ("_unroll_len", "_collect_nstep")
        return sum(getattr(self, name, 1) for name in names) - 1

    # --- eval

    def _init_eval(self) -> None:
        """Makes what `_forward_eval` needs."""
        self._eval_armor = Armor(self._model)
        if isinstance(self.action_space, spaces.Discrete):
            self._eval_armor.add_plugin("main", "argmax_sample")

    def _forward_eval(self, data_id: list[int], data: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Acts without exploration; arguments as for `_forward_collect`."""
        output: dict[str, Any] = self._eval_armor.forward(data)
        return output

    def _reset_eval(self, data_id: list[int] | None = None) -> None:
        """Episodes begin: in these rows, or everywhere."""
        if hasattr(self, "_eval_armor"):
            self._eval_armor.reset(data_id=data_id)

    def _get_setting_eval(self, command_info: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """As `_get_setting_collect`, for `_eval_setting_set`."""
        return {}

    # --- command

    def _init_command(self) -> None:
        """Makes what the settings are computed with, such as a schedule."""

    def _get_setting_collect(self, command_info: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Settings for the next round of collecting, under the names in `_collect_setting_set`.

        Args:
            command_info: ``learner_step`` (updates so far), ``env_step`` and ``progress`` (0 to 1).
        """
        return {}

    def _create_model_from_cfg(
        self, cfg: AttrDict, model_type: type[nn.Module] | None = None
    ) -> nn.Module:
        """The network, from ``cfg.model``.

        Args:
            cfg: The whole config of the policy.
            model_type: A class to use instead of the default one.
        """
        if model_type is not None:
            return model_type(**cfg.model)
        discrete = isinstance(self.action_space, spaces.Discrete)
        config = ModelConfig(**{"activation": "relu", "orthogonal": False, **cfg.model})
        default = QNetwork if discrete else DeterministicActor
        return create_model(default, self.observation_space, self.action_space, config)
