"""`make_vec`: make environments by id, class or function, in one process or many."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

from gymnasium.envs.registration import EnvSpec

from guerdon.envs.factory import ATARI_FRAME_STACK, AnyEnv, EnvFactory
from guerdon.envs.ids import find_wrapper, resolve
from guerdon.envs.native import EnvPoolVectorEnv, NotNativeError, make_native
from guerdon.envs.subprocess import SubprocessVectorEnv
from guerdon.envs.vector import LocalVectorEnv, VectorEnv

Backend = Literal["auto", "native", "base", "subprocess", "async_subprocess", "envpool"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def make_vec(
    env_id: str | Callable[..., AnyEnv],
    n_envs: int = 1,
    *,
    backend: Backend = "auto",
    kwargs: Mapping[str, Any] | None = None,
    settings: Sequence[Any] | None = None,
    wrappers: Sequence[str | Callable[[AnyEnv], AnyEnv]] = (),
    max_episode_steps: int | None = None,
    default_limit: int | None = None,
    frame_stack: int = 1,
    atari: bool = False,
    imports: Sequence[str] = (),
    timeout: float = 60.0,
    max_restarts: int = 10,
    wait_num: int = 1,
    render_mode: str | None = None,
) -> VectorEnv:
    """Make a vector of environments.

    Tuples in observations become dictionaries with the keys ``"0"``, ``"1"`` and so on.

    Args:
        env_id: A Gymnasium id; ``"package.module:Class"``; or a function or class that makes one
            environment, called with its entry of `settings` (if there are any) and `kwargs`.
        n_envs: Number of environments.
        backend: Where they run. ``native``: a vectorized implementation. ``base``: one after the
            other, in this process. ``subprocess``: in processes, all at once.
            ``async_subprocess``: the same, and only those that are ready step. ``envpool``:
            EnvPool's. ``auto``: native where there is one for these arguments, else base.
        kwargs: Arguments of every environment.
        settings: Arguments in which environments differ, one entry each, cycled when there are
            fewer: overrides of `kwargs`, or the first argument of a function.
        wrappers: Applied to each environment, the first innermost; or ``"package.module:Class"``.
        max_episode_steps: Time limit of episodes, instead of the registered one.
        default_limit: Time limit of episodes where there is no other.
        frame_stack: Number of frames in an observation, along a new first axis. With `atari`, 1
            stands for the usual 4.
        atari: Usual preprocessing of Atari frames: 84 x 84, grey, every fourth. Rewards are not
            clipped, and a lost life does not end the episode.
        imports: Modules to import first, for the ids they register.
        timeout: Seconds after which a process that does not answer is restarted.
        max_restarts: Restarts, over all environments, before the run ends with an error.
        wait_num: With ``async_subprocess``: number of environments a step waits for.
        render_mode: Render mode of Gymnasium; `VectorEnv.render` requires ``"rgb_array"``.
    """
    if n_envs < 1:
        raise ValueError(f"n_envs is {n_envs}, but has to be 1 or more")
    if backend not in BACKENDS:
        raise ValueError(f"there is no backend {backend!r}: it is one of {', '.join(BACKENDS)}")
    if settings and len(settings) > n_envs:
        raise ValueError(f"there are {len(settings)} settings for {n_envs} environments")
    if render_mode is not None:
        kwargs = {**(kwargs or {}), "render_mode": render_mode}
    source: EnvSpec | Callable[..., AnyEnv]
    if not isinstance(env_id, str):
        name, source = getattr(env_id, "__name__", type(env_id).__name__), env_id
    else:  # EnvPool has ids of its own
        name = env_id
        source = EnvSpec(name) if backend == "envpool" else resolve(name, imports)
    factory = EnvFactory(
        name=name,
        source=source,
        takes_setting=not isinstance(env_id, str),
        kwargs=dict(kwargs or {}),
        settings=tuple(settings or ()),
        wrappers=tuple(find_wrapper(each) if isinstance(each, str) else each for each in wrappers),
        max_episode_steps=max_episode_steps,
        default_limit=default_limit,
        frame_stack=ATARI_FRAME_STACK if atari and frame_stack == 1 else frame_stack,
        atari=atari,
    )
    if backend == "envpool":
        return EnvPoolVectorEnv(factory, n_envs)
    if backend in ("subprocess", "async_subprocess"):
        return SubprocessVectorEnv(
            factory,
            n_envs,
            synchronous=backend == "subprocess",
            timeout=timeout,
            max_restarts=max_restarts,
            wait_num=wait_num,
        )
    if backend == "native":
        return make_native(factory, n_envs)
    if backend == "auto" and render_mode is None:
        with suppress(NotNativeError):
            return make_native(factory, n_envs, auto=True)
    return LocalVectorEnv(factory, n_envs)
