"""Plugins of `Armor`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from guerdon import ops
from guerdon.compat.nervex.rl_utils import create_noise_generator
from guerdon.compat.nervex.torch_utils import map_tensors, stack
from guerdon.config.registry import Registry

Call = Callable[..., Any]
Range = Mapping[str, float]


class Plugin:
    """A wrapper of a model's call. The base class changes nothing."""

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """Return the output for `data` of `call`, the next plugin or the model.

        Pass on the other inputs that are not used here.
        """
        return call(data, **kwargs)

    def reset(self, **kwargs: Any) -> None:
        """Drop state kept between calls; ``data_id`` are the environments."""


PLUGINS: Registry[type[Plugin]] = Registry("plugin", "guerdon.compat.nervex.armor_plugins")
register_plugin = PLUGINS.register
"""Register a plugin under a name: as a decorator, or as a call with the class."""


@register_plugin("grad")
class Grad(Plugin):
    """Switches gradients on or off for the call."""

    def __init__(self, enable_grad: bool = True) -> None:
        self.enable_grad = enable_grad

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """Return the output, with or without a graph."""
        with torch.set_grad_enabled(self.enable_grad):
            return call(data, **kwargs)


class Sampler(Plugin):
    """Base of plugins that choose an ``action`` [...]; here that with the largest logit."""

    generator: torch.Generator | None = None  # on the device of the model; or torch's global one
    options: tuple[str, ...] = ()
    """Inputs of the call that are for `choose`."""

    def choose(self, output: Mapping[str, Any]) -> Tensor:
        """Choose actions from the output of the model."""
        return ops.categorical_mode(output["logit"])

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """Return the output with ``action``."""
        own = {name: kwargs.pop(name) for name in self.options if name in kwargs}
        output = call(data, **kwargs)
        output["action"] = self.choose(output, **own)
        return output


register_plugin("argmax_sample", Sampler)


@register_plugin("eps_greedy_sample")
class EpsGreedySample(Sampler):
    """``action`` has the largest logit, or is random with probability ``eps``."""

    options = ("eps",)

    def choose(self, output: Mapping[str, Any], eps: float = 0.0) -> Tensor:
        """See `Sampler`."""
        if eps <= 0:
            return super().choose(output)
        return ops.epsilon_greedy_sample(output["logit"], eps, self.generator)


@register_plugin("multinomial_sample")
class MultinomialSample(Sampler):
    """``action`` is sampled from the softmax of the logits."""

    def choose(self, output: Mapping[str, Any]) -> Tensor:
        """See `Sampler`."""
        return ops.categorical_sample(output["logit"].detach(), self.generator)


@register_plugin("action_noise")
class ActionNoise(Sampler):
    """Adds noise to continuous actions: ``gauss``, ``ou`` or another of `rl_utils.noise_mapping`.

    `noise_range` and `action_range` bound the noise and the action, ``{"min": ..., "max": ...}``.
    """

    def __init__(
        self,
        noise_type: str = "gauss",
        noise_kwargs: Mapping[str, Any] | None = None,
        noise_range: Range | None = None,
        action_range: Range | None = MappingProxyType({"min": -1, "max": 1}),
    ) -> None:
        self.noise_generator = create_noise_generator(noise_type, noise_kwargs)
        self.noise_range, self.action_range = noise_range, action_range

    def choose(self, output: Mapping[str, Any]) -> Tensor:
        """See `Sampler`."""
        action = output["action"]
        self.noise_generator.generator = self.generator
        noise = _bounded(self.noise_generator(action.shape, action.device), self.noise_range)
        return _bounded(action + noise, self.action_range)

    def reset(self, data_id: Sequence[int] | None = None, **_: Any) -> None:
        """Restart the noise, in all rows or in the rows `data_id`."""
        self.noise_generator.reset(data_id)


def _bounded(value: Tensor, bounds: Range | None) -> Tensor:
    return value if bounds is None else value.clamp(bounds["min"], bounds["max"])


@register_plugin("hidden_state")
class HiddenState(Plugin):
    """Keeps the state of a recurrent model between calls, per environment; made by `init_fn`.

    The model gets the states as "prev_state", a list with one entry per row, and returns them as
    ``next_state``: a list, or a tensor or a mapping of tensors with one row each. A call without
    ``data_id`` has `state_num` rows; by default those of the last call. With `save_prev_state`, the
    output has the states before the call as ``prev_state``: tensors are stacked to [B, ...].
    """

    def __init__(
        self,
        state_num: int | None = None,
        save_prev_state: bool = False,
        init_fn: Callable[[], Any] = lambda: None,
    ) -> None:
        self.state_num, self.save_prev_state, self.init_fn = state_num, save_prev_state, init_fn
        self.states: dict[int, Any] = {}  # by environment

    def forward(
        self, call: Call, data: Any, *, data_id: Sequence[int] | None = None, **kwargs: Any
    ) -> Any:
        """Return the output; `data_id` is the environment of each row, by default 0, 1, ..."""
        inputs = dict(data.items()) if hasattr(data, "items") else {"obs": data}
        rows = data_id
        if rows is None:
            rows = sorted(self.states) if self.state_num is None else range(self.state_num)
        before = [self.states[row] if row in self.states else self.init_fn() for row in rows]
        output = call({**inputs, "prev_state": before or None}, **kwargs)
        after = [map_tensors(torch.detach, each) for each in _rows(output.pop("next_state"))]
        if not before:  # the first call says how many rows there are
            rows, before = range(len(after)), [None] * len(after)
        if len(after) != len(before):
            raise ValueError(f"the model returned {len(after)} states for {len(before)} rows")
        self.states |= dict(zip(rows, after, strict=True))
        if self.save_prev_state:
            zeros = map_tensors(torch.zeros_like, after[0])
            output["prev_state"] = stack([zeros if each is None else each for each in before])
        return output

    def reset(self, data_id: Any = None, state: Sequence[Any] | None = None, **_: Any) -> None:
        """Set the states of all environments, or of `data_id`, to `state` or the initial one."""
        if state is not None:
            rows = range(len(state)) if data_id is None else data_id
            self.states |= dict(zip(rows, state, strict=True))
            return
        for number in [*self.states] if data_id is None else data_id:
            self.states.pop(number, None)


def _rows(states: Any) -> list[Any]:
    """Split states into one per row."""
    if isinstance(states, Mapping):
        parts = zip(*map(_rows, states.values()), strict=True)
        return [dict(zip(states, part, strict=True)) for part in parts]
    return list(states)


@register_plugin("teacher")
class Teacher(Plugin):
    """Marks a teacher model; see `Armor.add_model`."""

    def __init__(self, teacher_cfg: Mapping[str, Any] | None = None) -> None:
        self.teacher_cfg = dict(teacher_cfg or {})
