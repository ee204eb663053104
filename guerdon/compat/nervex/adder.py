"""`Adder`: from transitions to training samples, under the names of the nerveX tutorial.

A transition is a dictionary, a trajectory a list of them. Guerdon hands these functions transitions
as they are read, with the reward resolved, so what they compute is never older than the reward.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from guerdon import ops

if TYPE_CHECKING:
    from collections import deque

    from torch import Tensor

    from guerdon.compat.nervex.samples import Transition


class Adder:
    """Builds training samples. What it is given stays as it is; only `get_traj` empties its cache.

    Args:
        use_cuda: Whether what it computes goes to the GPU; else it stays where the data is.
        unroll_len: Transitions a sample; more than 1 for networks with a memory.
        last_fn_type: What happens to a last sample that is too short. ``last``: it begins earlier,
            and shares transitions with the one before it. ``drop``: it is left out.
            ``null_padding``: it is filled up with zeros.
    """

    def __init__(
        self,
        use_cuda: bool,
        unroll_len: int,
        last_fn_type: Literal["last", "drop", "null_padding"] = "last",
    ) -> None:
        if unroll_len < 1:
            raise ValueError(f"unroll_len is {unroll_len}, but has to be 1 or more")
        if last_fn_type not in ("last", "drop", "null_padding"):
            raise ValueError(
                f"unknown last_fn_type {last_fn_type!r}: use 'last', 'drop' or 'null_padding'"
            )
        self._use_cuda = use_cuda
        self._unroll_len = unroll_len
        self._last_fn_type = last_fn_type

    def get_traj(
        self, cache: deque[Transition], traj_len: float, return_num: int = 0
    ) -> list[Transition]:
        """Takes the oldest transitions out of a cache.

        Args:
            cache: Transitions in time order.
            traj_len: How many to take, ``inf`` for all; fewer when there are not so many.
            return_num: How many more to look at: they are in the trajectory, for the n-step returns
                of those before them, and are returned to the cache as the start of the next one.
        """
        n_taken = int(min(len(cache), float(traj_len)))  # as text, too: "inf"
        n_ahead = min(len(cache) - n_taken, return_num)
        traj = [cache.popleft() for _ in range(n_taken + n_ahead)]
        cache.extendleft(reversed(traj[n_taken:]))
        return traj

    def get_gae(
        self, data: list[Transition], last_value: Any, gamma: float, gae_lambda: float
    ) -> list[Transition]:
        """The transitions with ``adv``, their generalized advantage.

        Args:
            data: A trajectory with ``value`` and ``reward``, and ``done`` where the episode
                terminated.
            last_value: The value after the last transition; of no effect when that is ``done``.
            gamma: Discount of one step.
            gae_lambda: How far rewards reach, 0 to 1.
        """
        if not data:
            return []
        with torch.no_grad():
            reward, value = (self._numbers(data, key)[:, None] for key in ("reward", "value"))
            ends = [{"done": row.get("done", False)} for row in data]
            done = self._numbers(ends, "done")[:, None].bool()
            cut = done.clone()
            cut[-1] = True
            after = torch.as_tensor(last_value, dtype=value.dtype, device=value.device)
            advantage = ops.generalized_advantage(
                reward,
                value,
                torch.cat([value[1:], after.reshape(1, 1)]),
                gamma * (~done).to(value.dtype),
                cut,
                gae_lambda,
            )
        return [
            _changed(transition, adv=adv)
            for transition, adv in zip(data, advantage[:, 0].unbind(), strict=True)
        ]

    def get_nstep_return_data(
        self, data: list[Transition], nstep: int, traj_len: float
    ) -> list[Transition]:
        """The first transitions of a trajectory, each with what its n-step return is made of.

        ``reward`` becomes the next `nstep` rewards, zeros after a termination; ``done`` says
        whether the episode terminated among them, and ``next_obs`` is the observation after the
        last. Where the trajectory breaks off before, without a termination, a transition is left
        out: its return would be discounted as if it were longer.

        Args:
            data: The trajectory, as `get_traj` gives it.
            nstep: Steps of the return; 1 changes nothing.
            traj_len: How many transitions to return at most.
        """
        n_rows = int(min(len(data), traj_len))
        if nstep == 1:
            return list(data[:n_rows])
        rows = []
        for i in range(n_rows):
            window = _until_done(data[i : i + nstep])
            done = bool(window[-1].get("done", False))
            if len(window) < nstep and not done:
                break
            reward = self._numbers(window, "reward")
            padded = torch.cat([reward, reward.new_zeros(nstep - len(window))])
            changes = {"reward": padded, "done": window[-1].get("done", False)}
            if "next_obs" in window[-1]:
                changes["next_obs"] = window[-1]["next_obs"]
            rows.append(_changed(data[i], **changes))
        return rows

    def get_train_sample(self, data: list[Transition]) -> list[Any]:
        """The transitions as training samples.

        With an `unroll_len` of 1 they are samples already. Else a sample has under each key a list
        of `unroll_len` values, and under ``mask`` whether they are real. One that cannot begin
        earlier because the trajectory is too short is filled up with zeros under ``last``, too.
        """
        length = self._unroll_len
        if length == 1:
            return list(data)
        starts = list(range(0, len(data), length))
        if starts and starts[-1] + length > len(data):
            if self._last_fn_type == "drop":
                starts.pop()
            elif self._last_fn_type == "last":
                starts[-1] = max(len(data) - length, 0)
        return [self._unrolled(data[start : start + length]) for start in starts]

    def _unrolled(self, rows: list[Transition]) -> Transition:
        missing = self._unroll_len - len(rows)
        device = "cuda" if self._use_cuda else "cpu"
        mask = torch.arange(self._unroll_len, device=device) < len(rows)
        values = {
            key: [row[key] for row in rows] + [_zeros(value) for _ in range(missing)]
            for key, value in rows[-1].items()
        }
        return {**values, "mask": list(mask.unbind())}

    def _numbers(self, data: list[Transition], key: str) -> Tensor:
        """One number of each transition, [T]."""
        numbers = [torch.as_tensor(row[key], dtype=torch.float32) for row in data]
        stacked = torch.stack([number.reshape(()) for number in numbers])
        return stacked.cuda() if self._use_cuda else stacked


def _until_done(window: list[Transition]) -> list[Transition]:
    for i, transition in enumerate(window):
        if transition.get("done", False):
            return window[: i + 1]
    return window


def _changed(transition: Transition, **changes: Any) -> Transition:
    changed = copy.copy(transition)  # of its own class, which may have attributes
    changed.update(changes)
    return changed


def _zeros(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _zeros(inner) for key, inner in value.items()}
    return torch.zeros_like(torch.as_tensor(value))
