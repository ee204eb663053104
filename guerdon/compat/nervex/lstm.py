"""Recurrent networks."""

from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from guerdon.nn.heads import Output
from guerdon.nn.models import DeterministicActor, Model, QNetwork
from guerdon.nn.spaces import unwrap


class LSTMCore(nn.Module):
    """An LSTM whose state is one tensor [B, 2 * size], with one row per environment.

    Args:
        n_in: Number of input features.
        size: Number of output features.
        orthogonal: Whether to initialise weights orthogonally and biases with 0.
    """

    def __init__(self, n_in: int, size: int, orthogonal: bool = True) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, size)
        self.size = size
        if orthogonal:
            for name, parameter in self.lstm.named_parameters():
                if "weight" in name:
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.zeros_(parameter)

    def forward(
        self, features: Tensor, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Map features [B, n_in] or [T, B, n_in] to ([..., size], the state after the last row).

        Args:
            features: Features of one step, or a segment.
            state: State before the first row; None for zeros.
            start: [B] or [T, B], True for rows that begin an episode, where the state is reset.
        """
        if features.dim() == 2:
            output, state = self(features[None], state, None if start is None else start[None])
            return output[0], state
        if state is None:
            state = features.new_zeros(features.shape[1], 2 * self.size)
        if start is None:
            return self._run(features, state)
        # One call of the LSTM per stretch without an episode start.
        cuts = (start[1:].any(-1).nonzero().flatten() + 1).tolist()
        outputs = []
        for first, last in zip([0, *cuts], [*cuts, len(features)], strict=True):
            state = state * ~start[first].unsqueeze(-1)
            output, state = self._run(features[first:last], state)
            outputs.append(output)
        return torch.cat(outputs), state

    def _run(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = state.unsqueeze(0).chunk(2, -1)
        output, (hidden, cell) = self.lstm(features, (hidden.contiguous(), cell.contiguous()))
        return output, torch.cat([hidden[0], cell[0]], -1)


class Recurrent(Model):
    """A network with an LSTM of ``config.lstm`` features between encoder and head."""

    recurrent = True

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        assert self.config.lstm is not None
        self.core = LSTMCore(self.size, self.config.lstm, self.config.orthogonal)
        self.size = self.config.lstm
        return super().make_head(action_space)

    def forward(self, inputs: Any, state: Any = None, start: Tensor | None = None) -> Output:
        """Return the outputs of the head, and ``next_state``.

        Args:
            inputs: Observations [B, ...] or [T, B, ...]; a mapping may have "prev_state" (a tensor,
                or a list of B states or None) and "start" in addition to "obs".
            state: LSTM state [B, 2 * size] before the first row; None for the initial one.
            start: True for rows ([B] or [T, B]) that begin an episode.
        """
        if unwrap(inputs, self.observation_space) is not inputs:
            state = inputs.get("prev_state") if state is None else state
            start = inputs.get("start") if start is None else start
        features, state = self.core(self.features(inputs), _stacked(state), start)
        return {**self.head(features), "next_state": state}


def _stacked(states: Any) -> Tensor | None:
    """Stack a list of states, with zeros for None."""
    if states is None or isinstance(states, Tensor):
        return states
    known = next((state for state in states if state is not None), None)
    if known is None:
        return None
    zeros = torch.zeros_like(known)
    return torch.stack([zeros if state is None else state for state in states])


class RecurrentQNetwork(Recurrent, QNetwork):
    """Action values for a Discrete action space: ``logit`` [..., n_actions]."""


class RecurrentActor(Recurrent, DeterministicActor):
    """Deterministic policy in [-1, 1]: ``action`` [..., *shape]."""
