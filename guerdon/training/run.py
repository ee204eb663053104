"""`train`: train a policy from a config, or resume a run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.config import GuerdonConfig, compose, to_yaml
from guerdon.envs.ids import registered_limit
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.training.audit import Audit
from guerdon.training.checkpoints import save_checkpoint
from guerdon.training.display import Mode, Status, make_display
from guerdon.training.evaluation import Evaluator
from guerdon.training.experts import make_experts
from guerdon.training.monitor import Budget, Monitor
from guerdon.training.parts import EnvSetting, Parts, compose_run, make_parts
from guerdon.training.resuming import check_same, restore, restore_best, saved_state
from guerdon.training.reward_files import load_reward, save_reward, with_reward_of
from guerdon.training.run_folder import Recorder, RunFolder, default_path
from guerdon.training.threads import threads
from guerdon.training.trainers import offpolicy_trainer, onpolicy_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from guerdon.collect import Collected
    from guerdon.policy import Policy

Summary = dict[str, Any]

_STOPPING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_ASKED = b"stopping after this iteration; press Ctrl-C again to stop at once\n"
_STDERR = 2
_EPISODE = 1_000  # assumed length of episodes without a limit
_AUDITED = {
    "success_at_verdict": "eval/success_at_verdict",
    "success_once": "eval/success_once",
    "model_success_rate": "reward/success_rate",
}


def train(
    source: str | Path | Mapping[str, Any] | GuerdonConfig | None = None,
    *overrides: str,
    seed: int | None = None,
    resume: str | Path | None = None,
    exact: bool = False,
    from_reward: str | Path | None = None,
    display: Mode = "auto",
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
) -> Summary:
    """Train a policy, and write a run directory.

    Args:
        source: A preset, the path of a config file, sections as a dictionary, or a config.
        *overrides: Dotted keys with values, as on the command line: ``"policy.gamma=0.9"``.
        seed: Random seed; the config's by default.
        resume: Directory of a run to resume; its config is used, with the overrides.
        exact: Resume from the last scheduled checkpoint instead of one that an interrupt saved:
            the rest is then the same, bit for bit, as without the interrupt.
        from_reward: Directory of a run whose final reward the policy learns from, frozen, instead
            of the reward of the source.
        display: What to show: ``auto``, ``live``, ``lines`` or ``none``.
        env_setting: A function that makes an environment, and its arguments for the environments
            that collect and for those that evaluate, instead of the config's ``env.id``.
        model: A network for the policy, instead of its own.
        policy_fn: A policy class, instead of ``policy.type``.

    Returns:
        The content of ``summary.json``, and ``run_dir``.
    """
    if resume is not None:
        if source is not None:
            raise ValueError("a run is resumed with its own config: leave the preset or file out")
        source = RunFolder(resume).config
        if not source.is_file():
            raise FileNotFoundError(f"{resume} is not a run directory: it has no config.yaml")
    elif exact:
        raise ValueError("'exact' says how a run is resumed: give 'resume', too")
    if isinstance(source, GuerdonConfig):
        source = source.model_dump()
    if from_reward is not None:
        if resume is not None:
            raise ValueError("a run is resumed with its own reward: leave 'from_reward' out")
        source = with_reward_of(source, overrides, from_reward)
    changes = [*overrides, *([] if seed is None else [f"seed={seed}"])]
    if resume is None:
        config = compose(source, changes)
    else:
        assert isinstance(source, Path)
        moved = [change for change in changes if change.startswith("imports=")]
        config = compose_run(source, changes, policy_fn)
        check_same(compose_run(source, moved), config)
    with ExitStack() as stack:
        stack.enter_context(threads(config.run.threads))
        # Before the folder: a config that cannot be built leaves nothing behind.
        made = make_experts(config, display)
        parts = make_parts(made, env_setting=env_setting, model=model, policy_fn=policy_fn)
        stack.callback(parts.close)
        _check_target(config, parts)
        state, step = (None, None) if resume is None else saved_state(RunFolder(resume), exact)
        _begin_reward(config, parts, state)
        config = _with_checkpoint_interval(config)
        if resume is None:
            path = Path(config.run.dir or default_path(config.run.name, config.seed))
            folder = RunFolder.create(path, to_yaml(config))
        else:
            folder = RunFolder.reopen(resume)
        stack.enter_context(folder)
        if config.reward.collect_data:
            parts.keep_images(config.reward.data_collection)
        if state is not None:
            restore(parts, state, folder)
            _load_successes(config, parts)
        return _run(config, parts, folder, display, state, step)


def _check_target(config: GuerdonConfig, parts: Parts) -> None:
    section, reward = config.eval, parts.reward
    moves = reward.is_learned and reward.changes and section.select_by == "reward"
    if section.target_return is not None and moves:
        raise ValueError(
            "'eval.target_return' is set, but the scale of a reward that is trained beside the "
            "policy moves: leave it out, or set eval.select_by=env to stop by the environment's "
            "return"
        )


def _with_checkpoint_interval(config: GuerdonConfig) -> GuerdonConfig:
    if config.run.checkpoint_every is not None:
        return config
    length = config.env.max_episode_steps or registered_limit(config.env.id) or _EPISODE
    every = max(config.run.max_steps // 20, 3 * length * config.env.n_envs)
    return config.model_copy(
        update={"run": config.run.model_copy(update={"checkpoint_every": every})}
    )


def _begin_reward(config: GuerdonConfig, parts: Parts, state: dict[str, Any] | None) -> None:
    """Load the reward from ``checkpoint_path``, unless the run's own checkpoint has it."""
    if config.reward.pretrain and not parts.reward.can_pretrain:
        raise ValueError(
            f"'reward.pretrain' is set, but nothing in {', '.join(parts.reward.terms)} can be "
            f"trained before the policy acts: leave it out"
        )
    if config.reward.checkpoint_path is not None and state is None:
        load_reward(parts.reward, config.reward)
        _load_successes(config, parts)


def _load_successes(config: GuerdonConfig, parts: Parts) -> None:
    """Read the data that success classifiers are refitted with, before the run starts."""
    for model in parts.reward.models:
        if config.reward.cotrain and isinstance(model, ClassifierReward):
            model.load_successes()


def _run(
    config: GuerdonConfig,
    parts: Parts,
    folder: RunFolder,
    display: Mode,
    state: dict[str, Any] | None,
    step: int | None,
) -> Summary:
    if step is not None:
        folder.go_on(to_yaml(config))
    shown = make_display(
        Status(config.run.max_steps), sys.stdout, display,
        title=f"{config.run.name} · {config.env.id} · {config.policy['type']} · seed {config.seed}",
    )  # fmt: skip
    with Recorder(folder, shown, resume_step=step) as recorder, interrupts() as interrupted:
        evaluator = _evaluator(config, parts, folder, recorder)
        monitor = _monitor(config, parts, folder, recorder, evaluator, interrupted)
        if state is not None:
            monitor.load_training_state(state["monitor"])
            evaluator.load_training_state(state["evaluator"])
        if step is not None:
            restore_best(folder, evaluator)
        recorder.text(f"{'started' if step is None else 'resumed'} at step {max(step or 0, 0)}")
        if state is None and config.reward.pretrain:
            _pretrain(parts, recorder)
        collect, learn = config.collect, config.learn
        common: dict[str, Any] = {
            "reward": parts.reward,
            "n_step": collect.n_step,
            "n_episode": collect.n_episode,
            "batch_size": learn.batch_size,
            "monitor": monitor,
        }
        if parts.policy.on_policy:
            onpolicy_trainer(parts.policy, parts.collector, repeat=learn.repeat, **common)
        else:
            offpolicy_trainer(
                parts.policy,
                parts.collector,
                updates_per_collect=learn.updates_per_collect,
                warmup_steps=collect.warmup_steps,
                **common,
            )
        summary = _summary(config, monitor, evaluator)
        if parts.images is not None:
            parts.images.flush()
            positive, negative = parts.images.counts
            summary["trajectories"] = {"positive": positive, "negative": negative}
        folder.write_summary(summary)
        if not summary["updates"] and summary["stop_reason"] != "interrupted":
            recorder.text(
                "nothing was learned: the run ended before its first update (of an off-policy "
                "policy that comes after 'collect.warmup_steps')"
            )
        recorder.text(f"stopped: {summary['stop_reason']}")
        if summary["stop_reason"] == "interrupted":
            recorder.text(
                "--resume continues from here; since this checkpoint is not a scheduled one, only "
                "--resume --exact, from the one before, repeats the uninterrupted run bit for bit"
            )
    return {**summary, "run_dir": str(folder.path)}


def _pretrain(parts: Parts, recorder: Recorder) -> None:
    recorder.text("training the reward before the policy acts")
    start = time.perf_counter()
    metrics = parts.reward.pretrain()
    if not metrics:
        recorder.text("the reward had nothing to learn from: 'reward.pretrain' changed nothing")
        return
    recorder.log(0, metrics)
    recorder.text(f"trained the reward in {time.perf_counter() - start:.1f} s")


def _evaluator(
    config: GuerdonConfig, parts: Parts, folder: RunFolder, recorder: Recorder
) -> Evaluator:
    def save_best(steps: int, weights: dict[str, Any]) -> None:
        save_checkpoint(folder.best, steps, {"weights": weights}, keep=1)

    section = config.eval
    return Evaluator(
        parts.policy,
        parts.eval_env,
        parts.reward,
        episodes=section.episodes,
        seed=parts.seeds.evaluate,
        deterministic=section.deterministic,
        by_env=section.select_by == "env",
        save_best=save_best,
        say=recorder.text,
    )


def _monitor(
    config: GuerdonConfig,
    parts: Parts,
    folder: RunFolder,
    recorder: Recorder,
    evaluator: Evaluator,
    interrupted: Callable[[], bool],
) -> Monitor:
    def save(scheduled: bool) -> None:
        parts.clean_point()
        state = parts.training_state()
        state |= {"monitor": monitor.training_state(), "evaluator": evaluator.training_state()}
        steps, mark = monitor.progress.env_steps, "scheduled" if scheduled else None
        save_checkpoint(folder.checkpoints, steps, state, keep=config.run.keep, mark=mark)
        save_reward(folder.reward, steps, parts.reward, folder.config)
        if not monitor.progress.episodes and monitor.reason is None:
            recorder.text(
                f"step {steps}: no episode has ended yet, and each checkpoint truncates them: make "
                "'run.checkpoint_every' larger"
            )

    run = config.run
    assert run.checkpoint_every is not None
    monitor = Monitor(
        Budget(run.max_steps, run.max_updates, run.max_seconds, config.eval.target_return),
        evaluator=evaluator,
        eval_every=config.eval.every,
        log=recorder.log,
        log_every=run.log_every,
        save=save,
        save_every=run.checkpoint_every,
        show=recorder.progress,
        interrupted=interrupted,
    )
    return monitor


def _summary(config: GuerdonConfig, monitor: Monitor, evaluator: Evaluator) -> Summary:
    progress, newest = monitor.progress, evaluator.newest
    returns = newest.returns if newest is not None else [np.nan]
    return {
        "env_steps": progress.env_steps,
        "updates": progress.updates,
        "wall_seconds": progress.seconds,
        "fps": progress.env_steps / max(progress.seconds, 1e-9),
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "best_eval_return_mean": evaluator.best.get("return"),
        "best_step": evaluator.best.get("step"),
        "stop_reason": monitor.reason,
        "seed": config.seed,
        "episodes": progress.episodes,
        **_successes(newest),
    }


def _successes(evaluation: Collected | None) -> Summary:
    """Success in the newest evaluation, if the environment or the reward reports it."""
    found: Summary = {}
    if evaluation is None:
        return found
    if evaluation.success_rate is not None:
        found["eval_success_rate"] = evaluation.success_rate
    if isinstance(evaluation.audit, Audit):
        said = evaluation.audit.metrics()
        found |= {f"eval_{name}": said[key] for name, key in _AUDITED.items() if key in said}
    return found


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Make the first SIGINT, SIGTERM or SIGHUP a request to stop; the second is not changed."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, _: Any) -> None:
        asked.set()
        signal.signal(number, before[number])
        with suppress(OSError):  # not sys.stderr, which a signal may find in the middle of a line
            os.write(_STDERR, _ASKED)

    before: dict[int, Any] = {number: signal.getsignal(number) for number in _STOPPING}
    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
