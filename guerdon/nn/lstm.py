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

    def initial_state(self, n_rows: int) -> Tensor:
        """The state in which an episode begins."""
        weight = next(self.parameters())
        return weight.new_zeros(n_rows, 2 * self.size)

    def step(
        self, features: Tensor, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One step for acting: features [B, n_in] to ([B, size], next state); start is [B]."""
        output, state = self(
            features.unsqueeze(0), state, None if start is None else start.unsqueeze(0)
        )
        return output[0], state

    def forward(
        self, features: Tensor, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features [T, B, n_in] to ([T, B, size], the state after the last row).

        Args:
            features: What to read.
            state: The state before the first row; None for the initial one.
            start: [T, B], True for rows that begin an episode: the state is forgotten before them.
        """
        n_steps, n_rows = features.shape[:2]
        if state is None:
            state = self.initial_state(n_rows)
        if start is None:
            return self._run(features, state)
        # One call of the LSTM for each stretch in which no episode begins.
        cuts = (start[1:].any(-1).nonzero().flatten() + 1).tolist()
        outputs = []
        for first, last in zip([0, *cuts], [*cuts, n_steps], strict=True):
            state = state * ~start[first].unsqueeze(-1)
            output, state = self._run(features[first:last], state)
            outputs.append(output)
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)), state

    def _run(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = state.unsqueeze(0).chunk(2, -1)
        output, (hidden, cell) = self.lstm(features, (hidden.contiguous(), cell.contiguous()))
        return output, torch.cat([hidden[0], cell[0]], -1)
