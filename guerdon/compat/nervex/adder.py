"""nerveX's `Adder`: makes training samples from transitions.

A transition is a dictionary, a trajectory a list of them. `CommonPolicy` calls it on read, with
the resolved reward.
"""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from guerdon import ops
from guerdon.compat.nervex.samples import Transition


class Adder:
    """Makes training samples. Transitions are not changed; only `get_traj` empties its cache.

    Args:
        use_cuda: Whether to compute on the GPU; otherwise on the device of the data.
        unroll_len: Transitions per sample; above 1 for recurrent networks.
        last_fn_type: Handling of a last sample that is too short. ``last``: start it earlier, so
            that it overlaps the previous one. ``drop``: leave it out. ``null_padding``: pad it.
        null_transition: Transition to pad with; zeros by default.
        her_strategy: Goals of `get_her`: achieved at the end of the trajectory (``final``), after
            the transition (``future``) or anywhere (``episode``).
        her_replay_k: Relabelled copies of each transition in `get_her`.
    """

    def __init__(
        self,
        use_cuda: bool,
        unroll_len: int,
        last_fn_type: Literal["last", "drop", "null_padding"] = "last",
        null_transition: Transition | None = None,
        her_strategy: Literal["final", "future", "episode"] = "future",
        her_replay_k: int = 1,
    ) -> None:
        if unroll_len < 1:
            raise ValueError(f"unroll_len is {unroll_len}, but has to be 1 or more")
        _check("last_fn_type", last_fn_type, ("last", "drop", "null_padding"))
        _check("her_strategy", her_strategy, ("final", "future", "episode"))
        self._use_cuda = use_cuda
        self._unroll_len = unroll_len
        self._last_fn_type = last_fn_type
        self._null_transition = null_transition
        self._her_strategy = her_strategy
        self._her_replay_k = her_replay_k

    def get_traj(
        self, cache: deque[Transition], traj_len: float | str, return_num: int = 0
    ) -> list[Transition]:
        """Remove and return the oldest transitions of a cache.

        Args:
            cache: Transitions in time order.
            traj_len: Maximum number to take; ``inf``, or ``"inf"`` as in configs, for all.
            return_num: Additional transitions for n-step returns, which stay in the cache.
        """
        n_taken = int(min(len(cache), float(traj_len)))
        n_ahead = min(len(cache) - n_taken, return_num)
        traj = [cache.popleft() for _ in range(n_taken + n_ahead)]
        cache.extendleft(reversed(traj[n_taken:]))
        return traj

    def get_gae(
        self, data: list[Transition], last_value: Any, gamma: float, gae_lambda: float
    ) -> list[Transition]:
        """Return the transitions with generalized advantages as ``adv``.

        Args:
            data: A trajectory with ``value``, ``reward``, and ``done`` for termination.
            last_value: The value after the last transition; ignored if that is ``done``.
            gamma: Discount factor.
            gae_lambda: GAE lambda.
        """
        if not data:
            return []
        with torch.no_grad():
            rows = [{"done": False, **transition} for transition in data]
            reward, value, done = (
                self._numbers(rows, key)[:, None] for key in ("reward", "value", "done")
            )
            after = torch.as_tensor(last_value, dtype=value.dtype, device=value.device)
            value_next = torch.cat([value[1:], after.reshape(1, 1)])
            advantage = ops.generalized_advantage(
                reward, value, value_next, gamma * (1 - done), done.bool(), gae_lambda
            )
        return [_changed(data[t], adv=adv) for t, adv in enumerate(advantage[:, 0].unbind())]

    def get_gae_with_default_last_value(
        self, data: list[Transition], done: bool, gamma: float, gae_lambda: float
    ) -> list[Transition]:
        """Return the transitions as `get_gae`, without a given last value.

        Args:
            data: A trajectory with ``value`` and ``reward``.
            done: Whether it terminated. If not, its last transition only gives the last value, and
                is left out.
            gamma: Discount factor.
            gae_lambda: GAE lambda.
        """
        if done or not data:
            return self.get_gae(data, 0.0, gamma, gae_lambda)
        return self.get_gae(data[:-1], data[-1]["value"], gamma, gae_lambda)

    def get_nstep_return_data(
        self, data: list[Transition], nstep: int, traj_len: float | str
    ) -> list[Transition]:
        """Return the first transitions of a trajectory with the data of their n-step returns.

        ``reward`` becomes the next `nstep` rewards, zeros after a termination; ``done`` is whether
        the episode terminated among them, ``next_obs`` the observation after the last. Transitions
        whose window is cut short without a termination are left out.

        Args:
            data: A trajectory of `get_traj`.
            nstep: Number of steps; 1 changes nothing.
            traj_len: Maximum number of transitions to return.
        """
        n_rows = int(min(len(data), float(traj_len)))
        if nstep == 1:
            return list(data[:n_rows])
        rows = []
        for i in range(n_rows):
            window = _until_done(data[i : i + nstep])
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

        With an `unroll_len` of 1 these are the transitions. Otherwise each key of a sample has a
        list of `unroll_len` values, and ``mask`` is True for real ones. A shorter trajectory is
        padded, also with ``last``.
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
            key: [row[key] for row in rows] + [self._padding(key, value) for _ in range(missing)]
            for key, value in rows[-1].items()
        }
        return {**values, "mask": list(mask.unbind())}

    def _padding(self, key: str, value: Any) -> Any:
        given = self._null_transition
        return _zeros(value) if given is None else copy.deepcopy(given[key])

    def get_her(
        self,
        data: list[Transition],
        merge_func: Callable[[Any, Any], Any] | None = None,
        split_func: Callable[[Any], tuple[Any, Any, Any]] | None = None,
        goal_reward_func: Callable[[Any, Any], Tensor] | None = None,
    ) -> list[Transition]:
        """Return relabelled copies of the transitions of an episode: hindsight experience replay.

        Goals are drawn from torch's global generator. In a run, `reward=her` does the same on read.

        Args:
            data: A trajectory with ``obs``, ``next_obs`` and ``reward``.
            merge_func: Makes an observation from a state and a goal; they are concatenated by
                default.
            split_func: Splits an observation into state, desired goal and achieved goal; by default
                into halves, and the state is the achieved goal.
            goal_reward_func: Maps achieved and desired goals to a reward; by default 1 if they are
                equal, else 0.
        """
        merge, split = merge_func or _merged_goal, split_func or _split_goal
        reward, last = goal_reward_func or _goal_reward, len(data) - 1
        found = []
        for index, transition in enumerate(data):
            state, _, _ = split(transition["obs"])
            next_state, _, achieved = split(transition["next_obs"])
            for _ in range(self._her_replay_k):
                low = {"final": last, "future": index, "episode": 0}[self._her_strategy]
                goal = split(data[int(torch.randint(low, last + 1, ()))]["next_obs"])[2]
                changes = {
                    "obs": merge(state, goal),
                    "next_obs": merge(next_state, goal),
                    "reward": reward(achieved, goal),
                }
                found.append(_changed(transition, **changes))
        return found

    def _numbers(self, data: list[Transition], key: str) -> Tensor:
        """Return one number per transition, [T]."""
        numbers = [torch.as_tensor(row[key], dtype=torch.float32) for row in data]
        stacked = torch.stack([number.reshape(()) for number in numbers])
        return stacked.cuda() if self._use_cuda else stacked


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(f"unknown {name} {value!r}: use one of {names}")


def _merged_goal(state: Tensor, goal: Tensor) -> Tensor:
    return torch.cat([state, goal])


def _split_goal(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    state, goal = obs.chunk(2)
    return state, goal, state


def _goal_reward(achieved: Tensor, desired: Tensor) -> Tensor:
    return (achieved == desired).all().float().reshape(1)


def _until_done(window: list[Transition]) -> list[Transition]:
    for i, transition in enumerate(window):
        if transition.get("done", False):
            return window[: i + 1]
    return window


def _changed(transition: Transition, **changes: Any) -> Transition:
    changed = copy.copy(transition)  # keeps its class, which may have attributes
    changed.update(changes)
    return changed


def _zeros(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _zeros(inner) for key, inner in value.items()}
    return torch.zeros_like(torch.as_tensor(value))
