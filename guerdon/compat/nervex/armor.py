"""nerveX's `Armor`: a model with a target network, a teacher and plugins."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from guerdon.compat.nervex.armor_plugins import PLUGINS, Plugin
from guerdon.compat.nervex.armor_plugins import register_plugin as register_plugin

Side = Literal["main", "target", "teacher"]
_SIDES = ("main", "target", "teacher")


class Armor(nn.Module):
    """Wraps a model, which maps observations, or a mapping with "obs", to a dictionary.

    `forward`, `mode` and `reset` are the model's; the target's and the teacher's (`add_model`) are
    `target_forward`, `teacher_forward` and so on. Several armors may share a model, so it is not a
    submodule: the policy has to own it. The parameters of an armor itself are not trained.
    """

    model: nn.Module

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.__dict__["model"] = model  # bypasses nn.Module, so that it is not a submodule
        self.target_model: nn.Module | None = None
        self.teacher_model: nn.Module | None = None
        self._plugins: dict[str, list[Plugin]] = {side: [] for side in _SIDES}
        self._modes: dict[str, bool | None] = dict.fromkeys(_SIDES)
        self._takes_mapping: bool | None = None  # not known before the first tensor
        self._theta: float | None = None
        self._freq, self._updates = 1, 0

    def add_model(
        self,
        name: Literal["target", "teacher"],
        model: nn.Module | None = None,
        update_type: Literal["assign", "momentum"] = "assign",
        update_kwargs: Mapping[str, Any] | None = None,
        teacher_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a model that is not trained: ``target``, which follows the model, or ``teacher``.

        By default it is a copy of the armor's. `update_type` ``assign`` copies the model at every
        `freq`-th `target_update`, ``momentum`` moves by the fraction `theta` at each.
        """
        if name not in _SIDES[1:]:
            raise ValueError(f"an armor has no model {name!r}: add 'target' or 'teacher'")
        added = (copy.deepcopy(self.model) if model is None else model).requires_grad_(False)
        if name == "teacher":
            self.teacher_model = added
            self.add_plugin("teacher", "teacher", teacher_cfg=teacher_cfg)
            return
        options, keys = dict(update_kwargs or {}), {"assign": "freq", "momentum": "theta"}
        if update_type not in keys:
            raise ValueError(f"unknown update_type {update_type!r}: use 'assign' or 'momentum'")
        if set(options) != {keys[update_type]}:
            raise ValueError(
                f"update_type={update_type!r} needs update_kwargs={{{keys[update_type]!r}: ...}}, "
                f"and was given {options}"
            )
        self._freq, self._theta = int(options.get("freq", 1)), options.get("theta")
        self.target_model, self._updates = added, 0

    def add_plugin(self, side: Side, plugin: str | type[Plugin], **options: Any) -> None:
        """Add a plugin, by its name or class, with its options; later ones wrap earlier ones."""
        if side not in self._plugins:
            raise ValueError(f"an armor has no side {side!r}: use one of {', '.join(_SIDES)}")
        cls = PLUGINS.get(plugin) if isinstance(plugin, str) else plugin
        self._plugins[side].append(cls(**options))

    def plugins(self) -> list[Plugin]:
        """Return all plugins, the model's first, from inner to outer."""
        return [plugin for side in _SIDES for plugin in self._plugins[side]]

    def forward(self, data: Any, side: Side = "main", **kwargs: Any) -> Any:
        """Call the model through its plugins; `kwargs` are for them (``eps``) and the model."""
        model, train = self._model_of(side), self._modes[side]
        if train is not None and model.training is not train:
            model.train(train)  # another armor may have changed the mode
        call = partial(self._call, model)
        for plugin in self._plugins[side]:
            call = partial(plugin.forward, call)
        return call(data, **kwargs)

    def _call(self, model: nn.Module, data: Any, **kwargs: Any) -> Any:
        """Call a model with a tensor, or with {"obs": tensor} if it accepts only that."""
        if not isinstance(data, Tensor) or self._takes_mapping is False:
            return model(data, **kwargs)
        if self._takes_mapping:
            return model({"obs": data}, **kwargs)
        try:
            output, takes_mapping = model(data, **kwargs), False
        except (IndexError, TypeError) as error:  # raised by tensor["obs"]
            try:
                output, takes_mapping = model({"obs": data}, **kwargs), True
            except Exception:
                raise error from None
        self._takes_mapping = takes_mapping
        return output

    @torch.no_grad()
    def target_update(
        self, state_dict: Mapping[str, Tensor] | None = None, direct: bool = False
    ) -> None:
        """Update the target as set by `add_model`, or copy weights now (`direct`).

        `state_dict` are the weights to follow, by default the model's. Buffers are always copied.
        """
        target = self._model_of("target")
        if not direct:
            self._updates += 1
            if self._updates % self._freq:
                return
        own = target.state_dict(keep_vars=True)
        given = self.model.state_dict() if state_dict is None else state_dict
        if own.keys() != given.keys():
            differences = sorted(own.keys() ^ given.keys())
            raise ValueError(f"these weights do not match the target: they differ in {differences}")
        for name, value in own.items():
            if direct or self._theta is None or not isinstance(value, nn.Parameter):
                value.copy_(given[name])
            else:
                value.lerp_(given[name], self._theta)

    def mode(self, train: bool, side: Side = "main") -> None:
        """Set the mode (training or evaluation) in which this armor calls the model."""
        self._modes[side] = train
        self._model_of(side).train(train)

    def reset(self, side: Side = "main", **kwargs: Any) -> None:
        """Reset the model's plugins; ``data_id`` are the environments to reset."""
        for plugin in self._plugins[side]:
            plugin.reset(**kwargs)

    def __getattr__(self, name: str) -> Any:
        side, _, method = name.partition("_")
        if side in _SIDES[1:] and method in ("forward", "mode", "reset"):
            return partial(getattr(self, method), side=side)
        return super().__getattr__(name)

    def _model_of(self, side: Side) -> nn.Module:
        model: nn.Module | None = self.model if side == "main" else getattr(self, f"{side}_model")
        if model is None:
            raise ValueError(f"this armor has no {side}: call add_model({side!r}, ...) first")
        return model

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the states of model and target; as part of another module's, the target's."""
        if args or "destination" in kwargs:
            return super().state_dict(*args, **kwargs)
        state: dict[str, Any] = {"model": self.model.state_dict(**kwargs)}
        if self.target_model is not None:
            state["target_model"] = self.target_model.state_dict(**kwargs)
            state["target_updates"] = self.get_extra_state()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:  # type: ignore[override]
        """Load the result of `state_dict`."""
        self.model.load_state_dict(state_dict["model"], strict=strict)
        if self.target_model is None:
            return
        if "target_model" not in state_dict:
            self.target_update(direct=True)
            return
        self.target_model.load_state_dict(state_dict["target_model"], strict=strict)
        self.set_extra_state(state_dict.get("target_updates", torch.tensor(self._updates)))

    def get_extra_state(self) -> Tensor:
        """Return the number of calls of `target_update`."""
        return torch.tensor(self._updates)

    def set_extra_state(self, state: Tensor) -> None:
        """Load the result of `get_extra_state`."""
        self._updates = int(state)


BaseArmor = Armor
