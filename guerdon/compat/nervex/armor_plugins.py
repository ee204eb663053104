"""What an `Armor` adds to a model's call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from guerdon import ops
from guerdon.config.registry import Registry

Call = Callable[..., Any]
Range = tuple[float, float]


class Plugin:
    """One layer around a model's call. As it is, it changes nothing."""

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """The output for `data`.

        Args:
            call: What is inside: the next plugin, or the model.
            data: What was given to the armor.
            **kwargs: What else was given; pass on what is not this plugin's own.
        """
        return call(data, **kwargs)

    def reset(self, **kwargs: Any) -> None:
        """Forgets what was kept between calls."""


PLUGINS: Registry[type[Plugin]] = Registry("plugin", "guerdon.compat.nervex.armor_plugins")


def register_plugin(name: str, plugin: type[Plugin] | None = None) -> Any:
    """Makes a plugin known by a name: as a decorator, or as a call with the class."""
    return PLUGINS.register(name) if plugin is None else PLUGINS.register(name, plugin)


@register_plugin("grad")
class Grad(Plugin):
    """Switches gradients on or off for the call."""

    def __init__(self, enable_grad: bool = True) -> None:
        self.enable_grad = enable_grad

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """The output, with or without a graph."""
        if torch.is_grad_enabled() is self.enable_grad:
            return call(data, **kwargs)
        with torch.set_grad_enabled(self.enable_grad):
            return call(data, **kwargs)


class Sampler(Plugin):
    """Draws from a generator of its own, or from the one it is given.

    Args:
        generator: What to draw from, on the device of the model.
        seed: For a generator of its own, where none is given.
    """

    def __init__(self, generator: torch.Generator | None = None, seed: int = 0) -> None:
        self.given = generator
        self.seed = seed

    def generator(self, device: torch.device) -> torch.Generator:
        """The generator, which lives on the device where actions are drawn."""
        if self.given is None:
            self.given = torch.Generator(device).manual_seed(self.seed)
        return self.given


@register_plugin("argmax_sample")
class ArgmaxSample(Plugin):
    """``action`` is the one with the largest logit."""

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """The output, with ``action`` [...]."""
        output = call(data, **kwargs)
        output["action"] = output["logit"].argmax(-1)
        return output


@register_plugin("eps_greedy_sample")
class EpsGreedySample(Sampler):
    """``action`` is the best one, or any one with a chance of `eps`."""

    def forward(self, call: Call, data: Any, *, eps: float = 0.0, **kwargs: Any) -> Any:
        """The output, with ``action`` [...].

        Args:
            call: What is inside.
            data: What was given to the armor.
            eps: The chance of a random action, 0 to 1.
            **kwargs: Passed on.
        """
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
    """``action`` is drawn from the softmax of the logits."""

    def forward(self, call: Call, data: Any, **kwargs: Any) -> Any:
        """The output, with ``action`` [...]."""
        output = call(data, **kwargs)
        logit = output["logit"].detach()
        output["action"] = ops.categorical_sample(logit, self.generator(logit.device))
        return output


@register_plugin("action_noise")
class ActionNoise(Sampler):
    """Adds noise to continuous actions.

    Args:
        noise_type: ``gauss`` is independent; ``ou`` (Ornstein-Uhlenbeck) remembers, row by row.
        sigma: The spread; 0.1 to 0.3 for actions in [-1, 1].
        mu: The mean.
        theta: How fast ``ou`` returns to its mean.
        dt: The time step of ``ou``.
        noise_range: What the noise is clipped to, or None.
        action_range: What the action is clipped to, or None.
        generator: What to draw from.
        seed: For a generator of its own, where none is given.
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
        """The output, with noise in ``action``."""
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

    def reset(self, data_id: Sequence[int] | None = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Noise that remembers begins anew: everywhere, or in the rows `data_id`."""
        if data_id is None or self.state is None:
            self.state = None
        else:
            self.state = _without(self.state, data_id)


@register_plugin("hidden_state")
class HiddenState(Plugin):
    """Keeps a recurrent model's state between calls, for each environment.

    The model is given "prev_state" and gives ``next_state``: a tensor, or a mapping of tensors,
    with a row for each environment. A state of zeros is the initial one.
    """

    def __init__(self) -> None:
        self.state: Any = None

    def forward(
        self, call: Call, data: Any, *, data_id: Sequence[int] | None = None, **kwargs: Any
    ) -> Any:
        """The output, and ``prev_state``: the state in which it was computed.

        Args:
            call: What is inside.
            data: Observations, or a mapping with "obs".
            data_id: The environment of each row; 0, 1, ... by default.
            **kwargs: Passed on.
        """
        inputs = dict(data.items()) if hasattr(data, "items") else {"obs": data}
        before = _rows(self.state, data_id)
        inputs["prev_state"] = before
        output = call(inputs, **kwargs)
        after = output["next_state"]
        output["prev_state"] = _zeros(after) if before is None else before
        self.state = _stored(self.state, after, data_id)
        return output

    def reset(self, data_id: Sequence[int] | None = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Forgets everything, or the state of the environments `data_id`."""
        if data_id is None or self.state is None:
            self.state = None
        else:
            self.state = _without(self.state, data_id)


# Trees of tensors. Nothing is changed in place: under inference mode that would be refused later.


def _map(function: Callable[..., Tensor], *trees: Any) -> Any:
    first = trees[-1]
    if isinstance(first, Mapping):
        return {
            key: _map(function, *(None if tree is None else tree[key] for tree in trees))
            for key in first
        }
    return function(*trees)


def _zeros(tree: Any) -> Any:
    return _map(torch.zeros_like, tree)


def _index(ids: Sequence[int], like: Tensor) -> Tensor:
    return torch.as_tensor(ids, dtype=torch.int64, device=like.device)


def _grown(state: Tensor | None, n_rows: int, like: Tensor) -> Tensor:
    """A state with `n_rows` rows at least, of which new ones are zero."""
    if state is None:
        return like.new_zeros(n_rows, *like.shape[1:])
    if len(state) >= n_rows:
        return state
    return torch.cat([state, state.new_zeros(n_rows - len(state), *state.shape[1:])])


def _rows(state: Any, ids: Sequence[int] | None) -> Any:
    if state is None or ids is None:
        return state
    return _map(lambda leaf: _grown(leaf, max(ids) + 1, leaf)[_index(ids, leaf)], state)


def _stored(state: Any, rows: Any, ids: Sequence[int] | None) -> Any:
    def store(old: Tensor | None, new: Tensor) -> Tensor:
        new = new.detach()
        if ids is None:
            return new
        return _grown(old, max(ids) + 1, new).index_copy(0, _index(ids, new), new)

    return _map(store, state, rows)


def _without(state: Any, ids: Sequence[int]) -> Any:
    def forget(leaf: Tensor) -> Tensor:
        known = [number for number in ids if number < len(leaf)]
        return leaf.index_fill(0, _index(known, leaf), 0.0)

    return _map(forget, state)
