"""Plugins of `Armor`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from guerdon import ops
from guerdon.compat.nervex.rl_utils import create_noise_generator
from guerdon.compat.nervex.samples import stack
from guerdon.config.registry import Registry

Call = Callable[..., Any]
Range = Mapping[str, float]


class Plugin:
    """A wrapper of a model's call. The base class changes nothing."""

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """Return the output for `data`.

        Args:
            call: The next plugin, or the model.
            data: Input of the armor.
            **kwargs: Other inputs; pass on those that are not used here.
        """
        return call(data, **kwargs)

    def reset(self, **kwargs: Any) -> None:
        """Drop state kept between calls; ``data_id`` are the environments."""


PLUGINS: Registry[type[Plugin]] = Registry("plugin", "guerdon.compat.nervex.armor_plugins")


def register_plugin(name: str, plugin: type[Plugin] | None = None) -> Any:
    """Register a plugin under a name: as a decorator, or as a call with the class."""
    return PLUGINS.register(name) if plugin is None else PLUGINS.register(name, plugin)


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
    """Base of plugins that sample.

    Args:
        generator: Random generator on the device of the model; its own by default.
        seed: Random seed of its own generator.
    """

    def __init__(self, generator: torch.Generator | None = None, seed: int = 0) -> None:
        self.given = generator
        self.seed = seed

    def generator(self, device: torch.device) -> torch.Generator:
        """Return the generator on the device of the actions."""
        if self.given is None:
            self.given = torch.Generator(device).manual_seed(self.seed)
        return self.given


@register_plugin("argmax_sample")
class ArgmaxSample(Plugin):
    """``action`` has the largest logit."""

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """Return the output with ``action`` [...]."""
        output = call(data, **kwargs)
        output["action"] = output["logit"].argmax(-1)
        return output


@register_plugin("eps_greedy_sample")
class EpsGreedySample(Sampler):
    """``action`` has the largest logit, or is random with probability ``eps``."""

    def forward(self, call: Call, data: Any, *, eps: float = 0.0, **kwargs: Any) -> Any:
        """Return the output with ``action`` [...]."""
        output = call(data, **kwargs)
        logit = output["logit"]
        if eps > 0:
            action = ops.epsilon_greedy_sample(logit, eps, self.generator(logit.device))
        else:
            action = logit.argmax(-1)
        output["action"] = action
        return output


@register_plugin("multinomial_sample")
class MultinomialSample(Sampler):
    """``action`` is sampled from the softmax of the logits."""

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """Return the output with ``action`` [...]."""
        output = call(data, **kwargs)
        logit = output["logit"].detach()
        output["action"] = ops.categorical_sample(logit, self.generator(logit.device))
        return output


@register_plugin("action_noise")
class ActionNoise(Sampler):
    """Adds noise to continuous actions.

    Args:
        noise_type: ``gauss`` (independent), ``ou`` (Ornstein-Uhlenbeck, one path per row), or
            another of `rl_utils.noise_mapping`.
        noise_kwargs: Its arguments; ``{"sigma": 0.1}`` to 0.3 for actions in [-1, 1].
        noise_range: Bounds of the noise, ``{"min": ..., "max": ...}``, or None.
        action_range: Bounds of the action, or None.
        generator: See `Sampler`.
        seed: See `Sampler`.
    """

    def __init__(
        self,
        noise_type: str = "gauss",
        noise_kwargs: Mapping[str, Any] | None = None,
        noise_range: Range | None = None,
        action_range: Range | None = MappingProxyType({"min": -1, "max": 1}),
        generator: torch.Generator | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(generator, seed)
        self.noise_generator = create_noise_generator(noise_type, noise_kwargs)
        self.noise_range, self.action_range = noise_range, action_range

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """Return the output with noise in ``action``."""
        output = call(data, **kwargs)
        action = output["action"]
        self.noise_generator.generator = self.generator(action.device)
        noise = _bounded(self.noise_generator(action.shape, action.device), self.noise_range)
        output["action"] = _bounded(action + noise, self.action_range)
        return output

    def reset(self, data_id: Sequence[int] | None = None, **_: Any) -> None:
        """Restart the noise, in all rows or in the rows `data_id`."""
        self.noise_generator.reset(data_id)


def _bounded(value: Tensor, bounds: Range | None) -> Tensor:
    return value if bounds is None else value.clamp(bounds["min"], bounds["max"])


@register_plugin("hidden_state")
class HiddenState(Plugin):
    """Keeps the state of a recurrent model between calls, per environment.

    The model gets the states as "prev_state", a list with one entry per row, and returns them as
    ``next_state``: a list, or a tensor or a mapping of tensors with one row each.

    Args:
        state_num: Number of rows of a call without ``data_id``; by default those of the last call.
        save_prev_state: Whether the output has the states before the call as ``prev_state``;
            tensors, with zeros for the initial state, are stacked to [B, ...].
        init_fn: Makes the initial state of an environment.
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
        """Return the output of the model.

        Args:
            call: See `Plugin`.
            data: Observations, or a mapping with "obs".
            data_id: The environment of each row; 0, 1, ... by default.
            **kwargs: Passed on.
        """
        inputs = dict(data.items()) if hasattr(data, "items") else {"obs": data}
        rows = data_id
        if rows is None:
            rows = sorted(self.states) if self.state_num is None else range(self.state_num)
        before = [self.states[row] if row in self.states else self.init_fn() for row in rows]
        output = call({**inputs, "prev_state": before or None}, **kwargs)
        after = [_map(torch.detach, each) for each in _rows(output.pop("next_state"))]
        if not before:  # the first call says how many rows there are
            rows, before = range(len(after)), [None] * len(after)
        if len(after) != len(before):
            raise ValueError(f"the model returned {len(after)} states for {len(before)} rows")
        self.states |= dict(zip(rows, after, strict=True))
        if self.save_prev_state:
            output["prev_state"] = _saved(before, after[0])
        return output

    def reset(
        self,
        data_id: Sequence[int] | None = None,
        state: Sequence[Any] | None = None,
        **_: Any,
    ) -> None:
        """Set the states of all environments, or of `data_id`, to `state` or the initial one."""
        if state is not None:
            rows = range(len(state)) if data_id is None else data_id
            self.states |= dict(zip(rows, state, strict=True))
            return
        for number in list(self.states) if data_id is None else data_id:
            self.states.pop(number, None)


def _rows(states: Any) -> list[Any]:
    """Split states into one per row."""
    if isinstance(states, Mapping):
        parts = zip(*map(_rows, states.values()), strict=True)
        return [dict(zip(states, part, strict=True)) for part in parts]
    return list(states)


def _saved(before: list[Any], like: Any) -> Any:
    """Stack states of tensors, with zeros for None; other states stay a list."""
    zeros = _map(torch.zeros_like, like)
    while isinstance(like, Mapping):
        like = next(iter(like.values()))
    if not isinstance(like, Tensor):
        return before
    return stack([zeros if each is None else each for each in before])


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _map(function, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_map(function, value) for value in tree)
    return function(tree) if isinstance(tree, Tensor) else tree


@register_plugin("teacher")
class Teacher(Plugin):
    """Marks a teacher model; see `Armor.add_model`.

    Args:
        teacher_cfg: Settings of the teacher, for the code that uses it.
    """

    def __init__(self, teacher_cfg: Mapping[str, Any] | None = None) -> None:
        self.teacher_cfg = dict(teacher_cfg or {})
