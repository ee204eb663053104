"""A recurrent core."""

import torch
from torch import Tensor, nn


class LSTMCore(nn.Module):
    """An LSTM over features, whose state is one tensor [B, 2 * size]: a row per environment.

    Args:
        n_in: Features of the input.
        size: Features of the result.
        orthogonal: Whether weights begin orthogonal, and biases 0.
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
        """Features [B, n_in] or [T, B, n_in] to ([..., size], the state after the last row).

        Args:
            features: What to read: one step, or a segment.
            state: The state before the first row; None for zeros.
            start: [B] or [T, B], True for rows that begin an episode: the state is forgotten before
                them.
        """
        if features.dim() == 2:
            output, state = self(features[None], state, None if start is None else start[None])
            return output[0], state
        if state is None:
            state = features.new_zeros(features.shape[1], 2 * self.size)
        if start is None:
            return self._run(features, state)
        # One call of the LSTM for each stretch in which no episode begins.
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
