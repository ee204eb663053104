"""``guerdon demo``: the data layer at work on a real environment."""

from typing import Annotated

import typer


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps of all environments.")] = 2_000,
    n_envs: Annotated[int, typer.Option(min=1, help="Environments side by side.")] = 8,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Steps CartPole-v1 with random actions into a buffer, and shows what can be read from it."""
    # Here, not above: they take seconds to import, which `guerdon --help` should not.
    import time

    import gymnasium as gym
    import numpy as np
    from rich.console import Console
    from rich.progress import track

    from guerdon.data import ReplayBuffer

    console = Console()
    env = gym.make_vec("CartPole-v1", num_envs=n_envs)
    env.action_space.seed(seed)
    buffer = ReplayBuffer(size=steps * n_envs, n_envs=n_envs, seed=seed)
    returns: list[float] = []
    obs, _ = env.reset(seed=seed)
    # After an end, Gymnasium spends a step on the reset; that row is no transition.
    resets = np.zeros(n_envs, bool)
    start = time.perf_counter()
    for _ in track(range(steps), "random actions on CartPole-v1", console=console):
        act = env.action_space.sample()
        obs_next, rew, terminated, truncated, _ = env.step(act)
        finished = buffer.add(
            env_ids=range(n_envs),
            obs=obs,
            act=act,
            rew=rew,
            terminated=terminated,
            truncated=truncated,
            obs_next=obs_next,
            dummy=resets if resets.any() else None,
        )
        returns.extend(finished.returns.tolist())
        obs, resets = obs_next, terminated | truncated
    seconds = time.perf_counter() - start
    env.close()

    console.print(
        f"{len(buffer):,} transitions of {len(returns):,} episodes in {seconds:.1f} s, "
        f"{buffer.nbytes / len(buffer):.0f} bytes each; mean return {np.mean(returns or [0]):.1f}"
    )
    batch, indices = buffer.sample(3)
    console.print(f"\nthree of them, rows {indices.tolist()}:\n{batch}", highlight=False)
    segments, _ = buffer.sample(4, length=8)
    console.print(
        f"\nfour segments of eight steps: obs {segments.obs.shape}, of which "
        f"{int(segments.mask.sum())} steps are real and the rest padding"
    )
