"""A model at run time: a target copy beside it, and plugins around its call."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from guerdon.compat.nervex.armor_plugins import PLUGINS, Plugin
from guerdon.nn.adapter import Adapted
from guerdon.nn.critics import QCritic
from guerdon.nn.models import Model

Side = Literal["main", "target"]


class Armor(nn.Module):
    """Wraps a model for one use: learning, collecting, or evaluating.

    The model belongs to whoever made it (several armors may share one), and a policy has to hold
    it as a module of its own: an armor's `parameters` are only those of the target, which are not
    trained.

    Args:
        model: Takes observations, or a mapping with "obs", and gives a dictionary. One that only
            takes a mapping may still be called with a tensor.
    """

    model: nn.Module

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.__dict__["model"] = model  # past nn.Module, which would make it a part
        self.target_model: nn.Module | None = None
        self._plugins: dict[str, list[Plugin]] = {"main": [], "target": []}
        self._main: Callable[..., Any] = _callable(model)
        self._target: Callable[..., Any] | None = None
        self._modes: dict[str, bool | None] = {"main": None, "target": None}
        self._pairs: tuple[list[Tensor], ...] | None = None
        self._theta: float | None = None
        self._freq = 1
        self._updates = 0

    # --- assembling

    def add_model(
        self,
        name: Literal["target"],
        update_type: Literal["assign", "momentum"] = "assign",
        update_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a copy of the model that follows it and is not trained.

        Args:
            name: "target", the only one there is.
            update_type: ``assign`` copies the model at every `freq`-th `target_update`;
                ``momentum`` goes the share `theta` of the way at each.
            update_kwargs: ``{"freq": n}`` or ``{"theta": t}``.
        """
        if name != "target":
            raise ValueError(f"an armor has no model {name!r}: the one to add is 'target'")
        options = dict(update_kwargs or {})
        key = {"assign": "freq", "momentum": "theta"}.get(update_type)
        if key is None:
            raise ValueError(f"unknown update_type {update_type!r}: use 'assign' or 'momentum'")
        if set(options) != {key}:
            raise ValueError(
                f"update_type={update_type!r} needs update_kwargs={{{key!r}: ...}}, "
                f"and was given {options}"
            )
        if update_type == "assign":
            self._freq, self._theta = int(options["freq"]), None
        else:
            self._freq, self._theta = 1, float(options["theta"])
        self.target_model = copy.deepcopy(self.model).requires_grad_(False)
        self._updates = 0
        self._pairs = None
        self._chain("target")

    def add_plugin(self, side: Side, plugin: str | type[Plugin], **options: Any) -> None:
        """Puts a plugin around the call; what is added later is further out.

        Args:
            side: "main" or "target".
            plugin: A registered name, or a class.
            **options: For the plugin.
        """
        if side not in self._plugins:
            raise ValueError(f"an armor has no side {side!r}: use 'main' or 'target'")
        made_by = PLUGINS.get(plugin) if isinstance(plugin, str) else plugin
        self._plugins[side].append(made_by(**options))
        if side == "main" or self.target_model is not None:
            self._chain(side)

    def plugins(self) -> list[Plugin]:
        """All of them, the model's first, the innermost first."""
        return [*self._plugins["main"], *self._plugins["target"]]

    def _chain(self, side: Side) -> None:
        model: Any = self.model if side == "main" else self.target_model
        call = _callable(model)
        for plugin in self._plugins[side]:
            call = partial(plugin.forward, call)
        train = self._modes[side]
        if train is not None:
            call = partial(_in_mode, model, train, call)
        if side == "main":
            self._main = call
        else:
            self._target = call

    # --- running

    def forward(self, data: Any, **kwargs: Any) -> Any:
        """What the model gives, through the plugins.

        Args:
            data: Observations, or a mapping with "obs".
            **kwargs: For the plugins (``eps``, ``data_id``); the rest goes to the model.
        """
        return self._main(data, **kwargs)

    def target_forward(self, data: Any, **kwargs: Any) -> Any:
        """What the target gives, through its plugins; arguments as in `forward`."""
        if self._target is None:
            raise _no_target()
        return self._target(data, **kwargs)

    def target_update(
        self, state_dict: Mapping[str, Tensor] | None = None, direct: bool = False
    ) -> None:
        """Lets the target follow, in the way and at the rate that `add_model` was given.

        Buffers are copied whenever the target moves.

        Args:
            state_dict: The weights to follow; the model's own by default.
            direct: Whether to copy them now, whatever the rate.
        """
        if self.target_model is None:
            raise _no_target()
        if not direct:
            self._updates += 1
            if self._updates % self._freq:
                return
        self._follow(
            self._own_pairs() if state_dict is None else self._given_pairs(state_dict),
            None if direct else self._theta,
        )

    @torch.no_grad()
    def _follow(self, pairs: tuple[list[Tensor], ...], theta: float | None) -> None:
        targets, sources, target_buffers, buffers = pairs
        if theta is None:
            torch._foreach_copy_(targets, sources)
        else:
            torch._foreach_lerp_(targets, sources, theta)
        if buffers:
            torch._foreach_copy_(target_buffers, buffers)

    def _own_pairs(self) -> tuple[list[Tensor], ...]:
        if self._pairs is None:
            assert self.target_model is not None
            self._pairs = (
                list(self.target_model.parameters()),
                list(self.model.parameters()),
                list(self.target_model.buffers()),
                list(self.model.buffers()),
            )
        return self._pairs

    def _given_pairs(self, given: Mapping[str, Tensor]) -> tuple[list[Tensor], ...]:
        assert self.target_model is not None
        own = self.target_model.state_dict(keep_vars=True)
        if own.keys() != given.keys():
            strange = sorted(own.keys() ^ given.keys())
            raise ValueError(f"these weights are not the target's: they differ in {strange}")
        trained = [name for name in own if isinstance(own[name], nn.Parameter)]
        others = [name for name in own if not isinstance(own[name], nn.Parameter)]
        return (
            [own[name] for name in trained],
            [given[name] for name in trained],
            [own[name] for name in others],
            [given[name] for name in others],
        )

    def mode(self, train: bool) -> None:
        """Puts the model in training or evaluation mode whenever this armor calls it."""
        self._modes["main"] = train
        self.model.train(train)
        self._chain("main")

    def target_mode(self, train: bool) -> None:
        """Puts the target in training or evaluation mode whenever it is called."""
        if self.target_model is None:
            raise _no_target()
        self._modes["target"] = train
        self.target_model.train(train)
        self._chain("target")

    def reset(self, **kwargs: Any) -> None:
        """Resets the plugins around the model; ``data_id`` names the environments to reset."""
        for plugin in self._plugins["main"]:
            plugin.reset(**kwargs)

    def target_reset(self, **kwargs: Any) -> None:
        """Resets the plugins around the target."""
        for plugin in self._plugins["target"]:
            plugin.reset(**kwargs)

    # --- files

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """``{"model": ..., "target_model": ..., "target_updates": ...}``, the last two if any.

        As a part of another module it gives what that needs: the target, since the model is a part
        of that module itself.
        """
        if args or "destination" in kwargs:
            return super().state_dict(*args, **kwargs)
        state: dict[str, Any] = {"model": self.model.state_dict(**kwargs)}
        if self.target_model is not None:
            state["target_model"] = self.target_model.state_dict(**kwargs)
            state["target_updates"] = self.get_extra_state()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:  # type: ignore[override]
        """Loads what `state_dict` gave.

        Args:
            state_dict: With "model", and "target_model" where there is a target.
            strict: Whether the names have to be the same.
        """
        self.model.load_state_dict(state_dict["model"], strict=strict)
        if self.target_model is not None:
            if "target_model" not in state_dict:
                self.target_update(direct=True)
                return
            self.target_model.load_state_dict(state_dict["target_model"], strict=strict)
            if "target_updates" in state_dict:
                self.set_extra_state(state_dict["target_updates"])

    def get_extra_state(self) -> Tensor:
        """How often the target was asked to follow, since its rate counts from there."""
        return torch.tensor(self._updates)

    def set_extra_state(self, state: Tensor) -> None:
        """Goes on counting from `state`."""
        self._updates = int(state)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._pairs = None  # moving to a device replaces buffers
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]


def _no_target() -> ValueError:
    return ValueError("this armor has no target: call add_model('target', ...) first")


def _in_mode(
    model: nn.Module, train: bool, call: Callable[..., Any], data: Any, **kwargs: Any
) -> Any:
    # Another armor of the same model may have left it in the other mode.
    if model.training is not train:
        model.train(train)
    return call(data, **kwargs)


def _callable(model: nn.Module) -> Callable[..., Any]:
    # Its call and not the model, which an attribute of an armor would make a part of it.
    return model.__call__ if isinstance(model, Model | QCritic | Adapted) else _EitherInput(model)


class _EitherInput:
    """Calls a model of the user's with a tensor, or with {"obs": tensor} if it only takes that."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.wraps: bool | None = None  # not known before the first tensor

    def __call__(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(data, Tensor):
            return self.model(data, *args, **kwargs)
        if self.wraps is None:
            return self._find_out(data, *args, **kwargs)
        return self.model({"obs": data} if self.wraps else data, *args, **kwargs)

    def _find_out(self, data: Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            output = self.model(data, *args, **kwargs)
            self.wraps = False
        except (IndexError, TypeError) as error:  # what tensor["obs"] raises
            try:
                output = self.model({"obs": data}, *args, **kwargs)
            except Exception:
                raise error from None
            self.wraps = True
        return output
