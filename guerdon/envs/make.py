"""`make_vec`: environments by id, class or function, in one process or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from gymnasium.envs.registration import EnvSpec

from guerdon.envs.ids import find_wrapper, resolve
from guerdon.envs.local import LocalVectorEnv
from guerdon.envs.native import EnvPoolVectorEnv, make_native, may_never_end, why_not_native
from guerdon.envs.recipe import Recipe
from guerdon.envs.subprocess import SubprocessVectorEnv
from guerdon.envs.wrappers import ATARI_FRAME_STACK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from guerdon.envs.vector import VectorEnv
    from guerdon.envs.wrappers import AnyEnv

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
    """Makes a vector of environments.

    Tuples in observations become dictionaries with the keys ``"0"``, ``"1"`` and so on.

    Args:
        env_id: A Gymnasium id; ``"package.module:Class"``; or a function or class that makes one
            environment, called with its entry of `settings` (if there are any) and `kwargs`.
        n_envs: How many.
        backend: Where they run. ``native``: written for vectors. ``base``: one after the other, in
            this process. ``subprocess``: in processes, all at once. ``async_subprocess``: the same,
            and only those that are ready step. ``envpool``: EnvPool's. ``auto``: native where there
            is such a one for these arguments, else base.
        kwargs: Arguments of every environment.
        settings: What environments differ in, one entry each and again from the first when there
            are fewer: overrides of `kwargs`, or for a function its first argument.
        wrappers: Applied to each environment, the first innermost; or ``"package.module:Class"``.
        max_episode_steps: Truncates episodes, instead of the limit the id is registered with.
        default_limit: Truncates episodes where there is no limit at all.
        frame_stack: Observations are the last so many frames, along a new first axis. With `atari`,
            1 stands for the usual 4.
        atari: Preprocess frames as usual for Atari: 84 x 84, grey, every fourth. Rewards are not
            clipped, and a lost life ends no episode.
        imports: Modules to import first, for the ids they register.
        timeout: Seconds after which a process that does not answer is restarted.
        max_restarts: Restarts, over all environments, before the run is given up.
        wait_num: With ``async_subprocess``: how many environments a step waits for.
        render_mode: Of Gymnasium; ``"rgb_array"`` makes `VectorEnv.render` give frames.
    """
    if n_envs < 1:
        raise ValueError(f"n_envs is {n_envs}, but has to be 1 or more")
    if settings and len(settings) > n_envs:
        raise ValueError(f"there are {len(settings)} settings for {n_envs} environments")
    if render_mode is not None:
        kwargs = {**(kwargs or {}), "render_mode": render_mode}
    recipe = Recipe(
        name=_name(env_id),
        source=_source(env_id, backend, imports),
        takes_setting=not isinstance(env_id, str),
        kwargs=dict(kwargs or {}),
        settings=tuple(settings or ()),
        wrappers=tuple(find_wrapper(each) if isinstance(each, str) else each for each in wrappers),
        max_episode_steps=max_episode_steps,
        default_limit=default_limit,
        frame_stack=ATARI_FRAME_STACK if atari and frame_stack == 1 else frame_stack,
        atari=atari,
    )
    if backend == "auto":
        native = not (render_mode or why_not_native(recipe) or may_never_end(recipe))
        backend = "native" if native else "base"
    if backend in ("subprocess", "async_subprocess"):
        return SubprocessVectorEnv(
            recipe,
            n_envs,
            synchronous=backend == "subprocess",
            timeout=timeout,
            max_restarts=max_restarts,
            wait_num=wait_num,
        )
    makers = {"native": make_native, "base": LocalVectorEnv, "envpool": EnvPoolVectorEnv}
    if backend not in makers:
        raise ValueError(f"there is no backend {backend!r}: it is one of {', '.join(BACKENDS)}")
    return makers[backend](recipe, n_envs)


def _name(env_id: str | Callable[..., AnyEnv]) -> str:
    if isinstance(env_id, str):
        return env_id
    return str(getattr(env_id, "__name__", type(env_id).__name__))


def _source(
    env_id: str | Callable[..., AnyEnv], backend: str, imports: Sequence[str]
) -> EnvSpec | Callable[..., AnyEnv]:
    if not isinstance(env_id, str):
        return env_id
    if backend == "envpool":  # it has ids of its own
        return EnvSpec(env_id)
    return resolve(env_id, imports)
