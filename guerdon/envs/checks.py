"""Checks of what environments return; errors name the environment and what is wrong.

The checks of every step are quick: `fits`, `infos_fit`, and the first lines of `to_columns`. The
`Collector` calls `in_range`, for a rollout once. The others find out what is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, iterate

SUCCESS = ("success", "is_success")
"""Names of success in infos; earlier names take precedence."""
ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose elements are arrays of one shape."""
NUMBERS = "biuf"
"""Kinds of dtypes."""
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
LARGEST = float(np.sqrt(_LARGEST_FLOAT32))
"""Policies learn in float32, which cannot hold the square of a larger number: 1.8e19."""
_BOOL = np.dtype(bool)
_RETURNED = {
    "step": "(observation, reward, terminated, truncated, info)",
    "reset": "(observation, info)",
}


class InvalidStepError(ValueError):
    """Raised if an environment returns what cannot be learned from.

    Args:
        reason: What is wrong.
        env: Index of the environment; None if it is that of a vector.
        method: Method that returned it: ``step`` or ``reset``.
    """

    def __init__(self, reason: str, env: int | None, method: str = "step") -> None:
        self.reason, self.env, self.method = reason, env, method
        self._name = "the vector environment" if env is None else f"environment {env}"
        super().__init__(f"{self._name}, {method}(): {reason}")

    def locate(self, spec_id: str, lengths: np.ndarray) -> None:
        """Add the name of the environment and the step of the episode to the message."""
        where = "at the start of an episode"
        if self.method == "step":
            step = lengths.max() if self.env is None else lengths[self.env]
            where = f"at step {step + 1:,} of its episode"
        self.args = (f"{self._name} of {spec_id!r}, {where}: {self.reason}",)


class FailedStepError(InvalidStepError):
    """Raised if a method of an environment cannot go on; another process may be able to."""


# --- in every step


def fits(space: Space[Any], obs: Any, n: int) -> bool:
    """Whether a batch of `n` observations consists of arrays with the shapes of a space."""
    if isinstance(space, spaces.Dict):
        return isinstance(obs, dict) and all(
            key in obs and fits(part, obs[key], n) for key, part in space.spaces.items()
        )
    if isinstance(obs, np.ndarray):
        return bool(obs.shape == (n, *(space.shape or ())))
    return not isinstance(space, ARRAYS)


def in_range(space: Space[Any], obs: Any) -> bool:
    """Whether observations are finite and not too large; False may be a false alarm."""
    if isinstance(obs, np.ndarray):
        if obs.dtype.kind == "f":
            if np.vdot(obs, obs) <= _LARGEST_FLOAT32:  # not for NaN; the cheapest way
                return True
            return obs.dtype.itemsize == 2 and bool(np.isfinite(obs).all())
        if isinstance(space, spaces.Discrete):
            return bool(((obs >= space.start) & (obs < space.start + space.n)).all())
    elif isinstance(space, spaces.Dict):
        return all(in_range(part, obs[key]) for key, part in space.spaces.items())
    return True


def infos_fit(infos: Iterable[Any], batch: Mapping[str, Any]) -> bool:
    """Whether infos are dictionaries, and success in their batch is an array of numbers."""
    columns = [batch[name] for name in SUCCESS if name in batch]
    return all(isinstance(info, Mapping) for info in infos) and all(
        isinstance(each, np.ndarray) and each.ndim == 1 and each.dtype.kind in NUMBERS
        for each in columns
    )


def to_columns(
    n: int, rew: Any, terminated: Any, truncated: Any, info: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rewards, ``terminated`` and ``truncated`` [n] of a step of a vector environment."""
    if (
        type(rew) is type(terminated) is type(truncated) is np.ndarray
        and rew.shape == terminated.shape == truncated.shape == (n,)
        and terminated.dtype is truncated.dtype is _BOOL
        and rew.dtype.kind == "f"
        and np.vdot(rew, rew) <= _LARGEST_FLOAT32
        and info.__class__ is dict
    ):
        return rew, terminated, truncated
    if not isinstance(info, Mapping):
        raise InvalidStepError(f"the info is {_shown(info)}, not a dictionary", None)
    columns = {"the reward": rew, "terminated": terminated, "truncated": truncated}
    for name, values in columns.items():
        columns[name] = array = _array(values)
        if array.shape != (n,) or array.dtype.kind not in NUMBERS:
            reason = f"{name} is {_shown(values)}, not a number for each of {n} environments"
            raise InvalidStepError(reason, None)
        wrong = ~(np.abs(array) <= LARGEST) if values is rew else (array != 0) & (array != 1)
        for env in np.flatnonzero(wrong)[:1].tolist():
            check_flags(env, **({} if values is rew else {name: array[env]}))
            raise InvalidStepError(str(_range_fault(array[env], name)), env)
    rew, terminated, truncated = columns.values()
    rew = rew if rew.dtype.kind == "f" else rew.astype(np.float32)
    return rew, terminated.astype(bool), truncated.astype(bool)


# --- what is wrong


def space_fault(space: Any, name: str) -> str | None:
    """Return what is wrong with an attribute that has to be a space with numbers, or None."""
    if not isinstance(space, Space):
        return f"{name} is {_shown(space)}, not a gymnasium.Space: set it in __init__()"
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Any = space.spaces
        parts = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        faults = [space_fault(part, f"{name}[{key!r}]") for key, part in parts]
    else:
        faults = [] if space.shape and 0 in space.shape else [None]
    if faults:
        return next(filter(None, faults), None)
    return f"{name} is {space}, which has no numbers: give it at least one, such as a constant 0"


EXPLAINED = (TypeError, ValueError, OSError, StopIteration, SystemExit)
"""Errors of environments that `raise_interface` may explain."""


def reason_of(error: BaseException) -> str:
    """Return what an environment did wrong that raised an `OSError` or ended the program."""
    trace = _last(error)
    where = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}){where}: raise an error instead"
    if isinstance(error, StopIteration):
        return (
            f"it raises StopIteration{where}: return terminated=True or truncated=True from "
            "step() to end an episode"
        )
    return f"{type(error).__name__}: {error}{where}: check the file or connection that it uses"


def _last(error: BaseException) -> TracebackType | None:
    """Return where an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def raise_interface(error: BaseException, env: int | None, method: str) -> None:
    """Raise `InvalidStepError` if an error says that a method has not Gymnasium's interface."""
    if not isinstance(error, TypeError | ValueError):
        raise FailedStepError(f"{method}() fails: {reason_of(error)}", env, method) from error
    trace = _last(error)
    module = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    if module.partition(".")[0] not in ("gymnasium", "guerdon"):
        return  # an error of the environment's own code
    if "unpack" in str(error):
        reason = f"{method}() does not return {_RETURNED[method]}: {error}"
        raise InvalidStepError(reason, env, method) from error
    if "unexpected keyword argument 'seed'" in str(error):
        reason = "reset() does not take the arguments 'seed' and 'options'"
        raise InvalidStepError(reason, env, method) from error


def check_flags(env: int, **flags: Any) -> None:
    """Check ``terminated`` and ``truncated``: every text would count as true."""
    for name, flag in flags.items():
        if not _is_number(flag) or _array(flag) not in (0, 1):
            raise InvalidStepError(f"{name} is {_shown(flag)}, not true or false", env)


def check_transitions(
    space: Space[Any], rows: Iterable[Any], envs: Iterable[int], method: str = "step"
) -> None:
    """Raise an error if a `Transition` cannot be learned from.

    Args:
        space: Observation space of one environment.
        rows: Transitions.
        envs: Their environments.
        method: Method that returned them.
    """
    for env, (obs_next, rew, end, cut, info, first) in zip(envs, rows, strict=True):
        reason = (
            _observation_fault(space, obs_next)
            or (None if _is_number(rew) else f"the reward is {_shown(rew)}, not a number")
            or _range_fault(rew, "the reward")
            or (
                None
                if isinstance(info, Mapping)
                else f"the info is {_shown(info)}, not a dictionary"
            )
            or _success_fault(info)
        )
        if reason:
            raise InvalidStepError(reason, int(env), method)
        if (end or cut) and (reason := _observation_fault(space, first)):
            raise InvalidStepError(reason, int(env), "reset")


def check_observations(
    space: Space[Any], obs: Any, envs: Sequence[int] | np.ndarray, method: str
) -> None:
    """Raise an error if a batch of observations cannot be learned from.

    Args:
        space: Observation space of one environment.
        obs: Observations.
        envs: Their environments.
        method: Method that returned them.
    """
    n = len(envs)
    if not fits(space, obs, n):
        reason = _observation_fault(batch_space(space, n), obs)
        reason = reason or f"the observation is a {type(obs).__name__}, not of NumPy arrays"
        raise InvalidStepError(reason, None, method)
    for env, each in zip(envs, iterate(batch_space(space, n), obs), strict=True):
        if reason := _observation_fault(space, each):
            raise InvalidStepError(reason, int(env), method)


def _observation_fault(space: Space[Any], obs: Any, name: str = "the observation") -> str | None:
    """Return what is wrong with an observation, or None."""
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            return f"{name} is {_shown(obs)}, not a dictionary"
        missing = [key for key in space.spaces if key not in obs]
        if missing:
            return f"{name} lacks the key {missing[0]!r}"
        parts = space.spaces.items()
        faults = (_observation_fault(part, obs[key], f"{name} {key!r}") for key, part in parts)
        return next(filter(None, faults), None)
    if not isinstance(space, ARRAYS):
        return None
    array = _array(obs)
    if array.dtype.kind not in NUMBERS:
        return f"{name} is {_shown(obs)}, not numbers"
    if array.shape != space.shape:
        return f"{name} has the shape {array.shape}, but its space {space.shape}"
    if reason := _range_fault(array, name):
        return reason
    cast = array.astype(space.dtype)
    if not np.can_cast(array.dtype, cast.dtype, "same_kind") and (cast != array).any():
        return f"{name} is {array.dtype}, and its values change in the {cast.dtype} of its space"
    if isinstance(space, spaces.Discrete) and not space.contains(cast[()]):
        return f"{name} is {array}, which is not in {space}"
    return None


def _range_fault(values: Any, name: str) -> str | None:
    array = np.asarray(values)
    bad = ~(np.abs(array) <= LARGEST)
    if not bad.any():
        return None
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    value = float(array[place])
    at = f" at index {place[0] if len(place) == 1 else place}" if place else ""
    if np.isfinite(value):
        limit = (
            f"policies learn in float32, which cannot hold squares of numbers above {LARGEST:.2g}"
        )
        return f"{name} is {value:g}{at}, too large: {limit}"
    return f"{name} is {value:g}{at}, not a finite number"


def _success_fault(info: Mapping[str, Any]) -> str | None:
    for name in SUCCESS:
        value = info.get(name)
        if value is not None and not _is_number(value):
            return f"info[{name!r}] is {_shown(value)}, not true, false or a number"
    return None


def _is_number(value: Any) -> bool:
    array = _array(value)
    return not array.ndim and array.dtype.kind in NUMBERS


def _array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # such as a ragged list
        return np.array(None, object)


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return text if len(text) <= 80 else f"{text[:80]}..."
