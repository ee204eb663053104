"""Plugins of `Armor`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from guerdon import ops
from guerdon.compat.nervex.samples import row, stack
from guerdon.config.registry import Registry

Call = Callable[..., Any]
Range = tuple[float, float]


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
        noise_type: ``gauss`` (independent) or ``ou`` (Ornstein-Uhlenbeck, one path per row).
        sigma: Standard deviation; usually 0.1 to 0.3 for actions in [-1, 1].
        mu: Mean.
        theta: Rate at which ``ou`` returns to its mean.
        dt: Time step of ``ou``.
        noise_range: Bounds of the noise, or None.
        action_range: Bounds of the action, or None.
        generator: See `Sampler`.
        seed: See `Sampler`.
    """

    def __init__(
        self,
        noise_type: Literal["gauss", "ou"] = "gauss",
        sigma: float = 0.1,
        mu: float = 0.0,
        theta: float = 0.15,
        dt: float = 0.01,
        noise_range: Range | None = None,
        action_range: Range | None = (-1.0, 1.0),
        generator: torch.Generator | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(generator, seed)
        if noise_type not in ("gauss", "ou"):
            raise ValueError(f"unknown noise_type {noise_type!r}: use 'gauss' or 'ou'")
        self.noise_type = noise_type
        self.sigma, self.mu, self.theta, self.dt = sigma, mu, theta, dt
        self.noise_range = noise_range
        self.action_range = action_range
        self.state: Tensor | None = None

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """Return the output with noise in ``action``."""
        output = call(data, **kwargs)
        action = output["action"]
        noise = self._noise(action)
        if self.noise_range is not None:
            noise = noise.clamp(*self.noise_range)
        action = action + noise
        output["action"] = action if self.action_range is None else action.clamp(*self.action_range)
        return output

    def _noise(self, action: Tensor) -> Tensor:
        normal = torch.empty_like(action, requires_grad=False)
        normal.normal_(generator=self.generator(action.device))
        if self.noise_type == "gauss":
            return normal * self.sigma + self.mu
        state = self.state
        if state is None or state.shape != action.shape:
            state = torch.zeros_like(normal)
        pull = self.theta * (self.mu - state) * self.dt
        self.state = state + pull + self.sigma * self.dt**0.5 * normal
        return self.state

    def reset(self, data_id: Sequence[int] | None = None, **_: Any) -> None:
        """Restart ``ou`` noise, in all rows or in the rows `data_id`."""
        if data_id is None or self.state is None:
            self.state = None
            return
        rows = [number for number in data_id if number < len(self.state)]
        index = torch.tensor(rows, dtype=torch.int64, device=self.state.device)
        self.state = self.state.index_fill(0, index, 0.0)  # not in place: it may be in use


@register_plugin("hidden_state")
class HiddenState(Plugin):
    """Keeps the state of a recurrent model between calls, per environment.

    The model takes "prev_state" and returns ``next_state``: a tensor, or a mapping of tensors, with
    one row per environment. Zeros, or None for all rows, are the initial state.
    """

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}  # one row by environment

    def forward(
        self, call: Call, data: Any, *, data_id: Sequence[int] | None = None, **kwargs: Any
    ) -> Any:
        """Return the output, and as ``prev_state`` the state before the call.

        Args:
            call: See `Plugin`.
            data: Observations, or a mapping with "obs".
            data_id: The environment of each row; 0, 1, ... by default.
            **kwargs: Passed on.
        """
        inputs = dict(data.items()) if hasattr(data, "items") else {"obs": data}
        before = None
        if self.states:
            zeros = _map(torch.zeros_like, next(iter(self.states.values())))
            rows = sorted(self.states) if data_id is None else data_id
            before = stack([self.states.get(number, zeros) for number in rows])
        output = call({**inputs, "prev_state": before}, **kwargs)
        after = output["next_state"]
        output["prev_state"] = _map(torch.zeros_like, after) if before is None else before
        kept = _map(torch.detach, after)
        first = kept
        while isinstance(first, Mapping):
            first = next(iter(first.values()))
        for index, number in enumerate(range(len(first)) if data_id is None else data_id):
            self.states[number] = row(kept, index)
        return output

    def reset(self, data_id: Sequence[int] | None = None, **_: Any) -> None:
        """Drop all states, or those of the environments `data_id`."""
        for number in list(self.states) if data_id is None else data_id:
            self.states.pop(number, None)


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _map(function, value) for key, value in tree.items()}
    return function(tree)
