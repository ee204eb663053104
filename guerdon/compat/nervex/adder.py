"""nerveX's `Adder`: makes training samples from transitions.

A transition is a dictionary, a trajectory a list of them. `CommonPolicy` calls it on read, with
the resolved reward.
"""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from guerdon import ops

Transition = dict[str, Any]
Strategy = Literal["final", "future", "episode"]


class Adder:
    """Makes training samples. Transitions are not changed; only `get_traj` empties its cache.

    Samples have `unroll_len` transitions, above 1 for recurrent networks. `get_her` makes
    `her_replay_k` copies of each, with goals that were achieved at the end of the trajectory
    (``final``), after the transition (``future``) or anywhere (``episode``).
    """

    def __init__(
        self,
        use_cuda: bool,
        unroll_len: int,
        her_strategy: Strategy = "future",
        her_replay_k: int = 1,
    ) -> None:
        if unroll_len < 1:
            raise ValueError(f"unroll_len is {unroll_len}, but has to be 1 or more")
        if her_strategy not in get_args(Strategy):
            names = ", ".join(map(repr, get_args(Strategy)))
            raise ValueError(f"unknown her_strategy {her_strategy!r}: use one of {names}")
        self._use_cuda, self._unroll_len = use_cuda, unroll_len
        self._her_strategy, self._her_replay_k = her_strategy, her_replay_k

    def get_traj(
        self, cache: deque[Transition], traj_len: float | str, return_num: int = 0
    ) -> list[Transition]:
        """Remove and return at most `traj_len` transitions, or ``"inf"``, the oldest first.

        `return_num` more, for n-step returns, are returned and stay in the cache.
        """
        n_taken = int(min(len(cache), float(traj_len)))
        n_ahead = min(len(cache) - n_taken, return_num)
        traj = [cache.popleft() for _ in range(n_taken + n_ahead)]
        cache.extendleft(reversed(traj[n_taken:]))
        return traj

    def get_gae(
        self, data: list[Transition], last_value: Any, gamma: float, gae_lambda: float
    ) -> list[Transition]:
        """Return transitions with ``value`` and ``reward`` with generalized advantages as ``adv``.

        `last_value` is the value after the last one, ignored if that is ``done`` (terminated).
        """
        if not data:
            return []
        rows = [{"done": False, **transition} for transition in data]
        reward, value, done = (
            self._numbers(rows, key)[:, None].detach() for key in ("reward", "value", "done")
        )
        after = torch.as_tensor(last_value, dtype=value.dtype, device=value.device).detach()
        advantage = ops.generalized_advantage(
            reward, value, torch.cat([value[1:], after.reshape(1, 1)]), gamma * (1 - done),
            done.bool(), gae_lambda,
        )  # fmt: skip
        return [_changed(data[t], adv=adv) for t, adv in enumerate(advantage[:, 0].unbind())]

    def get_gae_with_default_last_value(
        self, data: list[Transition], done: bool, gamma: float, gae_lambda: float
    ) -> list[Transition]:
        """Return the transitions as `get_gae`, without a given last value.

        If the trajectory did not terminate, its last transition only gives that value.
        """
        if done or not data:
            return self.get_gae(data, 0.0, gamma, gae_lambda)
        return self.get_gae(data[:-1], data[-1]["value"], gamma, gae_lambda)

    def get_nstep_return_data(
        self, data: list[Transition], nstep: int, traj_len: float | str
    ) -> list[Transition]:
        """Return the first `traj_len` transitions with the data of their n-step returns.

        ``reward`` becomes the next `nstep` rewards, zeros after a termination; ``done`` is whether
        the episode terminated among them, ``next_obs`` the observation after the last. Transitions
        whose window is cut short without a termination are left out.
        """
        n_rows = int(min(len(data), float(traj_len)))
        if nstep == 1:
            return list(data[:n_rows])
        rows = []
        for i in range(n_rows):
            window = data[i : i + nstep]
            ends = (t + 1 for t, transition in enumerate(window) if transition.get("done", False))
            window = window[: next(ends, nstep)]
            done = window[-1].get("done", False)
            if len(window) < nstep and not done:
                break
            reward = self._numbers(window, "reward")
            padded = torch.cat([reward, reward.new_zeros(nstep - len(window))])
            changes = {key: window[-1][key] for key in ("next_obs",) if key in window[-1]}
            rows.append(_changed(data[i], reward=padded, done=done, **changes))
        return rows

    def get_train_sample(self, data: list[Transition]) -> list[Any]:
        """Return the transitions as training samples.

        With an `unroll_len` above 1, each key of a sample has a list of as many values, and
        ``mask`` is True for real ones. A last sample that is too short starts earlier, so that it
        overlaps the previous one; zeros pad a shorter trajectory.
        """
        length = self._unroll_len
        if length == 1:
            return list(data)
        latest = max(len(data) - length, 0)
        starts = [min(start, latest) for start in range(0, len(data), length)]
        return [self._unrolled(data[start : start + length]) for start in starts]

    def _unrolled(self, rows: list[Transition]) -> Transition:
        missing, device = self._unroll_len - len(rows), "cuda" if self._use_cuda else "cpu"
        mask = torch.arange(self._unroll_len, device=device) < len(rows)
        values = {
            key: [row[key] for row in rows] + [_zeros(value)] * missing
            for key, value in rows[-1].items()
        }
        return {**values, "mask": list(mask.unbind())}

    def get_her(
        self,
        data: list[Transition],
        merge_func: Callable[[Any, Any], Any] | None = None,
        split_func: Callable[[Any], tuple[Any, Any, Any]] | None = None,
        goal_reward_func: Callable[[Any, Any], Tensor] | None = None,
    ) -> list[Transition]:
        """Return relabelled copies of the transitions of an episode: hindsight experience replay.

        Goals are drawn from torch's global generator. `split_func` splits an observation into
        state, desired goal and achieved goal: by default into halves, where the state is the
        achieved goal. `merge_func` makes one from a state and a goal, and `goal_reward_func` a
        reward from achieved and desired goal: by default 1 if they are equal, else 0.
        """
        merge = merge_func or (lambda state, goal: torch.cat([state, goal]))
        split, reward = split_func or _split_goal, goal_reward_func or _goal_reward
        found, last = [], len(data) - 1
        for index, transition in enumerate(data):
            state = split(transition["obs"])[0]
            next_state, _, achieved = split(transition["next_obs"])
            for _ in range(self._her_replay_k):
                low = {"final": last, "future": index, "episode": 0}[self._her_strategy]
                goal = split(data[int(torch.randint(low, last + 1, ()))]["next_obs"])[2]
                obs, next_obs = merge(state, goal), merge(next_state, goal)
                changes = {"obs": obs, "next_obs": next_obs, "reward": reward(achieved, goal)}
                found.append(_changed(transition, **changes))
        return found

    def _numbers(self, data: list[Transition], key: str) -> Tensor:
        """Return one number per transition, [T]."""
        numbers = [torch.as_tensor(row[key], dtype=torch.float32) for row in data]
        stacked = torch.stack([number.reshape(()) for number in numbers])
        return stacked.cuda() if self._use_cuda else stacked


def _split_goal(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    state, goal = obs.chunk(2)
    return state, goal, state


def _goal_reward(achieved: Tensor, desired: Tensor) -> Tensor:
    return (achieved == desired).all().float().reshape(1)


def _changed(transition: Transition, **changes: Any) -> Transition:
    changed = copy.copy(transition)  # keeps its class, which may have attributes
    changed.update(changes)
    return changed


def _zeros(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _zeros(inner) for key, inner in value.items()}
    return torch.zeros_like(torch.as_tensor(value))
