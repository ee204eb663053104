"""`make_vec`: makes environments by id, class or function, in one process or many."""

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
            environment, called with its entry of `settings` (if any) and `kwargs`.
        n_envs: Number of environments.
        backend: ``native``: a vectorised implementation. ``base``: one after the other, in this
            process. ``subprocess``: in processes, in parallel. ``async_subprocess``: the same, but
            a step returns as soon as some are ready. ``envpool``: EnvPool. ``auto``: native if
            available for these arguments, else base.
        kwargs: Arguments of every environment.
        settings: Arguments in which environments differ, one entry each, cycled: overrides of
            `kwargs`, or the first argument of a function.
        wrappers: Wrappers, innermost first; classes, functions or ``"package.module:Class"``.
        max_episode_steps: Time limit of episodes, instead of the registered one.
        default_limit: Time limit of episodes if there is no other.
        frame_stack: Number of stacked frames, along a new first axis. With `atari`, 1 means the
            usual 4.
        atari: Standard Atari preprocessing: 84 x 84, grayscale, every fourth frame. Rewards are not
            clipped, and a lost life does not end the episode.
        imports: Modules to import first, for the ids they register.
        timeout: Seconds after which an unresponsive process is restarted.
        max_restarts: Restarts, over all environments, after which the run fails.
        wait_num: With ``async_subprocess``: number of environments that a step waits for.
        render_mode: Render mode of Gymnasium; `VectorEnv.render` requires ``"rgb_array"``.
    """
    if not isinstance(env_id, str) and not callable(env_id):
        raise TypeError(
            f"the environment is {env_id!r:.100}: give an id such as 'CartPole-v1', or a class or "
            "function that makes one environment"
        )
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
    else:  # EnvPool has its own ids
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
