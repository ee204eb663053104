"""Load the policy of a run, and play with it: evaluations, demonstrations, camera frames."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np

from guerdon.collect import Collected, Collector
from guerdon.collect.reward_data import RewardDataCollector, check_cameras
from guerdon.config import GuerdonConfig
from guerdon.config.errors import as_path, check_number, line
from guerdon.config.schema import DataCollectionConfig, RewardConfig
from guerdon.config.trust import code_of
from guerdon.config.validation import validated
from guerdon.data import Batch, Rollout
from guerdon.data.demonstrations import KEYS, Demonstrations
from guerdon.data.leaves import check_like, describe
from guerdon.data.spaces import check_same_layout
from guerdon.envs import Step, VectorEnv, make_vec
from guerdon.limits import DAMAGE, reading
from guerdon.policy import Policy, create_policy
from guerdon.reward import Reward, Setting, make_reward
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, load_weights
from guerdon.training.evaluation import evaluate, evaluation_metrics, in_testing_state
from guerdon.training.fit_files import is_fit
from guerdon.training.parts import (
    LIMIT,
    EnvSetting,
    build_reward,
    compose_run,
    find_device,
    make_env,
)
from guerdon.training.process import interrupts, threads
from guerdon.training.reward_files import restore_reward
from guerdon.training.run_folder import RunFolder
from guerdon.training.video import Film, make_filmed_env

Progress = Callable[[int, int], None]

Checkpoint = Literal["best", "latest"] | int

PATIENCE = 200
"""Episodes of each policy without a new trajectory, after which `collect_frames` stops."""
_FILMS = 3  # episodes of an evaluation that are recorded
_ENVS = 8  # environments of `evaluate_policy`


# --- policies


def load_policy(
    run_dir: str | Path,
    checkpoint: Checkpoint = "best",
    *,
    env: Callable[..., Any] | None = None,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    trust: bool = False,
) -> Policy:
    """Load the policy of a run, to act without exploration.

    Args:
        run_dir: The run directory.
        checkpoint: ``best``, ``latest`` or a step.
        env: As given to `train`, if it was a lambda or a class of a notebook.
        env_setting: As given to `train`, if it was.
        model: As given to `train`, if it was; an instance gets the run's weights.
        policy_fn: As given to `train`, if it was.
        trust: Whether to run the code that another user's run names.
    """
    with code_of(run_dir, trust=trust):
        return _load(run_dir, checkpoint, _setting(env, env_setting), model, policy_fn)[0]


def load_reward(
    path: str | Path,
    *,
    env: Callable[..., Any] | None = None,
    env_setting: EnvSetting | None = None,
    trust: bool = False,
) -> Reward:
    """Load the reward of a run, as it was last saved, or a fitted classifier.

    Args:
        path: The run directory, or the ``reward.save_dir`` of a fit.
        env: See `load_policy`.
        env_setting: As given to `train`, if it was.
        trust: Whether to run the code that another user's run names.
    """
    path, env_setting = as_path(path), _setting(env, env_setting)
    if is_fit(path):
        section = validated(RewardConfig, {"type": "classifier", "checkpoint_path": str(path)})
        reward = make_reward({"type": "classifier"}, Setting(checkpoint_path=str(path)))
        restore_reward(reward, section)
        return reward
    with code_of(path, trust=trust):
        policy, config, _ = _load(path, "latest", env_setting, None, None)
        frozen = config.reward.model_copy(update={"cotrain": False})
        config = config.model_copy(update={"reward": frozen})
        with make_env(config.env.for_evaluation(1), *(env_setting or ())[:1]) as made:
            found = _saved_reward(path, config, policy, made)
    if found is None:
        raise ValueError(f"the reward of {path} is the environment's: there is none to load")
    return found


def final_parts(
    run_dir: str | Path,
    env_setting: EnvSetting | None,
    model: Any,
    policy_fn: Callable[..., Policy] | None,
) -> tuple[Policy, Reward]:
    """Load the policy and the reward at the end of a run; see `load_policy`."""
    policy, config, _ = _load(run_dir, "latest", env_setting, model, policy_fn)
    with make_env(config.env.for_evaluation(1), *(env_setting or ())[:1]) as env:
        reward = _saved_reward(run_dir, config, policy, env)
        return policy, reward or build_reward(config, policy, env, seed=0)


def _setting(env: Callable[..., Any] | None, env_setting: EnvSetting | None) -> EnvSetting | None:
    if env is None:
        return env_setting
    if not callable(env):
        raise TypeError(f"a run names its environment itself: leave env={env!r} out")
    return env, None, None


def _load(
    run_dir: str | Path,
    checkpoint: Checkpoint,
    env_setting: EnvSetting | None,
    model: Any,
    policy_fn: Callable[..., Policy] | None,
) -> tuple[Policy, GuerdonConfig, int]:
    """Return the policy, the config, and the step of the checkpoint."""
    config = compose_run(run_dir, policy_fn=policy_fn)
    try:
        device = find_device(config.run.device)
    except ValueError:  # this machine has no such device
        device = "cpu"
    # One environment, for its spaces.
    section = config.env.model_copy(update={"n_envs": 1, "settings": config.env.settings[:1]})
    make, given, _ = env_setting or (None, None, None)
    with make_env(section, make, given and given[:1]) as env:
        policy: Policy = (policy_fn or create_policy)(
            config.policy, env.observation_space, env.action_space, device=device, model=model
        )
    weights, step = load_weights(run_dir, checkpoint)
    with reading(run_dir):
        check_like(weights, policy.state_dict(), "the policy")
    try:
        # Only the networks: an optimizer or a generator of another device cannot be loaded here.
        policy.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"the policy of {run_dir} is not the {config.policy['type']} that its config.yaml "
            f"describes: a model or policy_fn that `train` was given has to be given here, too"
        ) from error
    return policy.eval(), config, step


@contextmanager
def _players(
    run_dir: str | Path,
    checkpoint: Checkpoint | Sequence[Checkpoint],
    noise: Sequence[float],
    n_episodes: int | None,
) -> Iterator[tuple[list[tuple[Policy, float | None]], VectorEnv, GuerdonConfig]]:
    """Yield each policy with each level of noise, evaluation environments, and the config."""
    several = [checkpoint] if isinstance(checkpoint, str | int) else checkpoint
    if not several:
        raise ValueError("give one checkpoint or more")
    with code_of(run_dir):
        loaded = [_load(run_dir, each, None, None, None) for each in several]
        players = [(policy, level) for policy, *_ in loaded for level in noise or (None,)]
        config = loaded[0][1]
        n_envs = min(config.eval.n_envs, n_episodes or config.eval.n_envs)
        with make_env(config.env.for_evaluation(n_envs)) as env, threads(config.run.threads):
            yield players, env, config


@contextmanager
def _acting(
    policy: Policy, env: VectorEnv, noise: float | None, seed: int, deterministic: bool
) -> Iterator[Any]:
    """Yield the policy in its testing state, with a share of random actions."""
    generator = np.random.default_rng(seed)

    def act(batch: Batch, state: Any = None) -> Batch:
        output: Batch = policy(batch, state)
        act = np.array(output.act)
        for row in np.flatnonzero(generator.random(len(act)) < (noise or 0)):
            act[row] = env.action_space.sample()  # which the reset of the environments seeds
        return output.replace(act=act)

    with in_testing_state(policy, seed, deterministic):
        yield act if noise else policy


# --- evaluations


def evaluate_run(
    run_dir: str | Path,
    *,
    checkpoint: Checkpoint = "best",
    episodes: int = 20,
    seed: int = 0,
    video: bool = False,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
) -> dict[str, Any]:
    """Evaluate the policy of a run in its evaluation environments.

    Args:
        run_dir: The run directory.
        checkpoint: ``best``, ``latest`` or a step.
        episodes: Number of episodes.
        seed: Random seed of the environments and the policy.
        video: Whether to record the first episodes into the run's folder ``videos``; older ones
            are replaced. Environments are then made one by one, so that the same seed may give
            other episodes than without.
        env_setting: As given to `train`, if it was; such environments cannot be recorded.
        model: As given to `train`, if it was.
        policy_fn: As given to `train`, if it was.

    Returns:
        Numbers (``learned_return_mean``: in the run's newest reward, None if that is the
        environment's), ``returns`` and ``lengths`` of all episodes, and paths of ``videos``.
    """
    check_number(episodes, "episodes")
    if video and env_setting is not None:
        raise ValueError("environments of 'env_setting' cannot be filmed: leave out 'video'")
    n_films = min(_FILMS, episodes) if video else 0
    folder, films = RunFolder(run_dir).videos, list[Film]()
    with ExitStack() as stack:
        stack.enter_context(code_of(run_dir))
        policy, config, step = _load(run_dir, checkpoint, env_setting, model, policy_fn)
        section = config.env.for_evaluation(min(max(config.eval.n_envs, n_films), episodes))
        if video:
            env, films = make_filmed_env(section, folder, n_films)
        elif env_setting is not None:
            make, _, given = env_setting
            env = make_env(section, make, given and given[:episodes])
        else:
            env = make_env(section)
        stack.enter_context(env)
        stack.enter_context(threads(config.run.threads))
        reward = _saved_reward(run_dir, config, policy, env)
        played = evaluate(
            policy, env, episodes, seed=seed, deterministic=config.eval.deterministic, reward=reward
        )
    videos = [film.path for film in films if film.finished]
    if video:
        for older in {*folder.glob("episode_*.mp4")}.difference(videos):
            older.unlink()
    about = {
        "run": str(run_dir), "env": config.env.id, "policy": config.policy["type"],
        "step": step, "seed": seed,
    }  # fmt: skip
    return about | _numbers(played) | {"videos": [str(path) for path in videos]}


def evaluate_policy(
    policy: Policy,
    env: str | Callable[..., Any] | gymnasium.Env[Any, Any] | VectorEnv,
    episodes: int = 20,
    *,
    seed: int = 0,
    deterministic: bool = True,
    reward: Reward | None = None,
) -> dict[str, Any]:
    """Evaluate a policy.

    Args:
        policy: The policy.
        env: An id, a class or function that makes an environment, or an environment.
        episodes: Number of episodes.
        seed: Random seed of the environments and the policy.
        deterministic: Whether to leave out exploration.
        reward: A learned reward, for ``learned_return_mean``.

    Returns:
        Numbers, and ``returns`` and ``lengths`` of all episodes.
    """
    if not isinstance(policy, Policy):
        raise TypeError(
            f"policy is {describe(policy)}, not a policy: load one with guerdon.load_policy(RUN), "
            "or take result.policy of what guerdon.train returned"
        )
    check_number(episodes, "episodes")
    check_number(seed, "seed", least=0)
    if reward is not None and not isinstance(reward, Reward):
        raise TypeError(
            f"reward is {describe(reward)}, not a reward: load one with guerdon.load_reward(RUN)"
        )
    with ExitStack() as stack:
        if isinstance(env, VectorEnv):
            vector = env
        elif isinstance(env, gymnasium.Env):
            instance = env
            vector = make_vec(lambda: instance)
        else:
            made = make_vec(env, min(episodes, _ENVS), default_limit=LIMIT)
            vector = stack.enter_context(made)
        check_same_layout(vector.observation_space, policy.env_observation_space, "observations")
        check_same_layout(vector.action_space, policy.action_space, "actions")
        played = evaluate(
            policy, vector, episodes, seed=seed, deterministic=deterministic, reward=reward
        )
    return _numbers(played)


def _numbers(played: Collected) -> dict[str, Any]:
    returns = played.returns
    return {
        "episodes": played.n_episode,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "return_min": min(returns),
        "return_max": max(returns),
        "learned_return_mean": float(np.mean(played.learned)) if played.learned else None,
        "length_mean": float(np.mean(played.lengths)),
        "success_rate": played.success_rate,
        "audit": evaluation_metrics(played) if played.audit is not None else None,
        "returns": returns,
        "lengths": played.lengths,
    }


def _saved_reward(
    run_dir: str | Path, config: GuerdonConfig, policy: Policy, env: VectorEnv
) -> Reward | None:
    """Return the reward of a run as it was last saved; None if it is the environment's."""
    folder = RunFolder(run_dir).reward
    if not checkpoint_steps(folder):
        return None
    reward = build_reward(config, policy, env, seed=0)  # its state needs no demonstrations
    state = load_checkpoint(folder, parts=("state",))[0]["state"]
    try:
        reward.load_training_state(state)
    except DAMAGE as error:
        raise ValueError(
            f"the reward in {folder} does not fit the run's config ({line(error)}): use the "
            "version of guerdon that wrote it"
        ) from error
    return reward


# --- demonstrations


def play_episodes(
    acting: Any, env: VectorEnv, n_episodes: int, seed: int, progress: Progress = lambda *_: None
) -> list[Batch]:
    """Play whole episodes with a policy, or any function that a `Collector` can call."""
    ended = 0

    def watch(_: Any, step: Step, dummy: np.ndarray | None) -> None:
        nonlocal ended
        done = step.terminated | step.truncated
        number = int((done if dummy is None else done & ~dummy).sum())
        if number:
            ended += number
            progress(ended, n_episodes)

    buffer = Rollout(256, env.n_envs)
    Collector(acting, env, buffer, seed=seed, watch=watch).collect(n_episode=n_episodes)
    rollout, _ = buffer.rollout(KEYS)
    episodes = []
    for number in range(env.n_envs):
        rows = rollout[rollout.mask[:, number], number]
        stops = np.flatnonzero(rows.terminated | rows.truncated) + 1
        for start, stop in zip([0, *stops], stops, strict=False):
            episodes.append(Batch({key: rows[key][start:stop] for key in KEYS}))
    return episodes


def collect_demonstrations(
    policy: Policy,
    env: VectorEnv,
    n_episodes: int,
    *,
    seed: int = 0,
    noise: float | None = None,
    deterministic: bool = True,
    progress: Progress = lambda *_: None,
) -> Demonstrations:
    """Play whole episodes with a policy; the same arguments give the same ones.

    Args:
        policy: The policy.
        env: Environments.
        n_episodes: Number of episodes.
        seed: Random seed of the environments, the policy and the noise.
        noise: Probability of a random action, 0 to 1; stored with every transition as ``noise``.
            None is 0, and nothing is stored.
        deterministic: Whether to act without exploration.
        progress: Called with the number of episodes so far, and of all, whenever one ends.
    """
    if n_episodes < 1:
        raise ValueError(f"demonstrations need one episode or more, not {n_episodes}")
    if noise is not None and not 0 <= noise <= 1:
        raise ValueError(f"noise is a probability, 0 to 1, not {noise}")
    with _acting(policy, env, noise, seed, deterministic) as acting:
        episodes = play_episodes(acting, env, n_episodes, seed, progress)
    if noise is not None:
        for episode in episodes:
            episode.noise = np.full(len(episode), noise, np.float32)
    return Demonstrations(episodes, env.spec_id, env.observation_space, env.action_space)


def collect_run(
    run_dir: str | Path,
    n_episodes: int,
    *,
    checkpoint: Checkpoint | Sequence[Checkpoint] = "best",
    noise: Sequence[float] = (),
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Demonstrations:
    """Play with the policy of a run in its evaluation environments.

    Args:
        run_dir: The run directory.
        n_episodes: Number of episodes of each checkpoint and level of noise.
        checkpoint: ``best``, ``latest`` or a step; or several, played in this order.
        noise: Levels of noise, see `collect_demonstrations`.
        seed: Random seed.
        progress: See `collect_demonstrations`.
    """
    episodes: list[Batch] = []
    with _players(run_dir, checkpoint, noise, n_episodes) as (players, env, config):

        def tell(number: int, _: int) -> None:
            progress(len(episodes) + number, len(players) * n_episodes)

        for number, (policy, level) in enumerate(players):
            played = collect_demonstrations(
                policy,
                env,
                n_episodes,
                seed=seed + number,
                noise=level,
                deterministic=config.eval.deterministic,
                progress=tell,
            )
            episodes += played.episodes
    return Demonstrations(episodes, config.env.id, env.observation_space, env.action_space)


# --- camera frames


def collect_frames(
    run_dir: str | Path,
    config: DataCollectionConfig,
    n_episodes: int | None = None,
    *,
    checkpoint: Checkpoint | Sequence[Checkpoint] = "best",
    noise: Sequence[float] = (),
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Play with the policy of a run in its evaluation environments, and keep the frames.

    Checkpoints and levels of noise take turns. Ctrl-C stops after the turn.

    Args:
        run_dir: The run directory.
        config: Cameras, folders and limits.
        n_episodes: Maximum number of episodes of each checkpoint and level of noise; None plays
            until both limits are reached.
        checkpoint: ``best``, ``latest`` or a step; or several.
        noise: Probability of a random action, 0 to 1; several levels take turns.
        seed: Random seed; together with the numbers of trajectories in the folders, so that
            resuming plays other episodes.
        progress: Called with the numbers of positive and negative trajectories after each turn.

    Returns:
        ``positive`` and ``negative`` trajectories in the folders, ``new`` ones of this call,
        ``episodes`` played, and ``stop_reason``: ``full`` (both limits are reached), ``episodes``
        (all were played), ``nothing_new`` (`PATIENCE` is over) or ``interrupted``.
    """
    played = fruitless = 0
    with _players(run_dir, checkpoint, noise, n_episodes) as (players, env, run):
        patience = PATIENCE * len(players) if n_episodes is None else math.inf
        check_cameras(env.observation_space, config, run.env.id)
        with RewardDataCollector(config, env.n_envs) as data, interrupts() as interrupted:
            before = known = sum(data.counts)
            seeds = np.random.default_rng([seed, *data.counts])
            for turn in count():
                start = turn // len(players) * env.n_envs
                left = env.n_envs if n_episodes is None else min(env.n_envs, n_episodes - start)
                reasons = {
                    "full": data.full,
                    "interrupted": interrupted(),
                    "nothing_new": fruitless >= patience,
                    "episodes": left <= 0,
                }
                if any(reasons.values()):
                    break
                policy, level = players[turn % len(players)]
                turn_seed = int(seeds.integers(2**31))
                with _acting(policy, env, level, turn_seed, run.eval.deterministic) as acting:
                    collector = Collector(acting, env, seed=turn_seed, watch=data.watch)
                    collector.collect(n_episode=left)
                data.flush()
                played += left
                fruitless = 0 if sum(data.counts) > known else fruitless + left
                known = sum(data.counts)
                progress(*data.counts)
            positive, negative = data.counts
    return {
        "positive": positive,
        "negative": negative,
        "new": positive + negative - before,
        "episodes": played,
        "stop_reason": next(name for name, holds in reasons.items() if holds),
    }
