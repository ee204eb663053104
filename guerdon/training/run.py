"""`train`: train a policy from a config, or resume a run."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import guerdon
from guerdon.config import GuerdonConfig, compose, plain_values, to_yaml
from guerdon.config.imports import find_object, refuse_while_importing
from guerdon.data.serializer import DamagedError
from guerdon.envs.ids import registered_limit
from guerdon.extras import require
from guerdon.nn import seeded
from guerdon.policy import Policy
from guerdon.reward import Reward
from guerdon.training.checkpoints import (
    checkpoint_steps,
    drop_later,
    load_checkpoint,
    save_checkpoint,
)
from guerdon.training.display import Mode, make_display
from guerdon.training.evaluation import Evaluator, evaluation_metrics
from guerdon.training.experts import make_experts
from guerdon.training.monitor import Budget, Monitor
from guerdon.training.parts import (
    EnvSetting,
    Parts,
    Seeds,
    check_config,
    compose_run,
    find_device,
    make_parts,
)
from guerdon.training.process import interrupts, threads
from guerdon.training.reward_files import check_path, restore_reward, save_reward, with_reward_of
from guerdon.training.run_folder import Recorder, RunFolder, default_path
from guerdon.training.trainers import run_trainer

Summary = dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Result(Mapping[str, Any]):
    """What `train` returns; as a mapping, it is the summary."""

    policy: Policy
    """The final policy, to act without exploration; `load_policy` loads the best one."""
    reward: Reward
    """The final reward."""
    summary: Summary
    """The content of ``summary.json``, and ``run_dir``."""
    run_dir: Path

    def __getitem__(self, key: str) -> Any:
        return self.summary[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.summary)

    def __len__(self) -> int:
        return len(self.summary)

    def __repr__(self) -> str:
        kind, found = type(self.policy).__name__, self.summary["eval_return_mean"]
        return f"Result({kind}, eval_return_mean={found:.4g}, run_dir={str(self.run_dir)!r})"


_EPISODE = 1_000  # assumed length of episodes without a limit
# Options that may not change when a run is resumed, as all of policy.model and reward.terms, but
# for the options of a term that follow.
_FIXED = {"seed", "env.id", "env.n_envs", "policy.type", "reward.checkpoint_path"}
_MAY_CHANGE = {
    "learning_rate",
    "batch_size",
    "update_per_collect",
    "train_every",
    "weight",
    "record_path",
    "positive_dir",
    "negative_dir",
}
# Metrics of the last evaluation in the summary, where they are known.
_SUCCESSES = {
    "eval_success_rate": "eval/success_rate",
    "eval_success_at_prediction": "eval/success_at_prediction",
    "eval_success_once": "eval/success_once",
    "eval_model_success_rate": "reward/success_rate",
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
    callback: Callable[[int, dict[str, float], Policy], Any] | None = None,
) -> Result:
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
        callback: Function to call with the step, the metrics and the policy whenever metrics are
            logged; the run stops if it returns False. The config's ``run.callback`` by default.
    """
    refuse_while_importing("train")
    changes = [*overrides, *([] if seed is None else [f"seed={seed}"])]
    if resume is None:
        config = _new_config(source, changes, exact, from_reward)
    elif source is not None:
        raise ValueError("a run is resumed with its own config: leave the preset or file out")
    elif from_reward is not None:
        raise ValueError("a run is resumed with its own reward: leave 'from_reward' out")
    else:
        config = compose_run(resume, changes, policy_fn)
    with ExitStack() as stack:
        stack.enter_context(threads(config.run.threads))
        state, step, changed = None, None, dict[str, Any]()
        if resume is not None:
            state, step = _saved_state(RunFolder(resume), exact)
            changed = _changes(config, state, resume, changes)
        _check_config(config, state)
        # Before the folder: a config that cannot be built leaves nothing behind.
        made = make_experts(config, display)
        seed, device = Seeds.of(config.seed).layers, find_device(config.run.device)
        stack.enter_context(seeded(seed, device))
        parts = make_parts(made, env_setting=env_setting, model=model, policy_fn=policy_fn)
        stack.callback(parts.close)
        _check_reward(config, parts)
        _load(config, parts, state, resume)
        config = _with_checkpoint_interval(config)
        if resume is None:
            path = config.run.dir or default_path(config.run.name, config.seed)
            folder = stack.enter_context(RunFolder.create(path, to_yaml(config)))
        else:
            folder = stack.enter_context(RunFolder.reopen(resume))
            folder.write_config(to_yaml(config))
            _rewind(folder, parts.reward, state, -1 if step is None else step)
        parts.journal.open(folder.journal, 0 if state is None else state.get("journal"))
        if config.reward.collect_data:
            parts.keep_images(config.reward.data_collection)
        recorder = stack.enter_context(_recorder(config, folder, display, step))
        asked = stack.enter_context(interrupts(recorder.interrupt))
        for key, (old, new) in changed.items():
            recorder.text(f"{key} was {old}, and is now {new}")
        run = _Run(config, parts, folder, recorder, asked, callback)
        run.start(state, step)
        run_trainer(parts, config, run.monitor)
        return Result(parts.policy.eval(), parts.reward, run.finish(), folder.path)


# --- before the loop


def _new_config(
    source: Any, changes: Sequence[str], exact: bool, from_reward: str | Path | None
) -> GuerdonConfig:
    if exact:
        raise ValueError("'exact' says how a run is resumed: give 'resume', too")
    if isinstance(source, GuerdonConfig):
        source = source.model_dump()
    if from_reward is not None:
        source = with_reward_of(source, changes, from_reward)
    return compose(source, changes)


def _changes(
    config: GuerdonConfig, state: dict[str, Any] | None, run_dir: str | Path, changes: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """Return what differs from the config of a checkpoint: old and new value by key.

    Without a checkpoint, the config file counts. What is learned may not change.
    """
    root, now = RunFolder(run_dir).checkpoints, _recorded(config)
    if state is None and checkpoint_steps(root):  # from which the run is not resumed
        state = load_checkpoint(root, parts=("config",))[0]
    before = None if state is None else state.get("config")
    if before is None:
        imports = [each for each in changes if each.startswith("imports=")]
        before = _recorded(compose_run(run_dir, imports))
    # Another version of guerdon may have added options.
    added = before.pop("version") == now.pop("version")
    changed = {key: (old, new) for key, old, new in _options(before, now, added) if old != new}
    for key, (old, new) in changed.items():
        names = key.split(".")
        learned = key in _FIXED or names[:2] in (["policy", "model"], ["reward", "terms"])
        if learned and not (names[0] == "reward" and _MAY_CHANGE.intersection(names[3:])):
            raise ValueError(f"{key} of a run cannot change on resume: it is {old}, not {new}")
    return changed


def _recorded(config: GuerdonConfig) -> dict[str, Any]:
    """Return what a checkpoint records of a config: all that training depends on."""
    values = plain_values(config)
    terms = {"reward.terms": list(values["reward"]["terms"])}  # their order matters, too
    return {"version": guerdon.__version__, **terms, **values, "run": None, "eval": None}


def _options(old: Any, new: Any, added: bool, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield options by their innermost key, with old and new value.

    Args:
        old: Old options.
        new: New options.
        added: Whether to include those that only the new ones have.
        path: Key of the options.
    """
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield path, old, new
        return
    for key in dict.fromkeys((*old, *new)) if added else old:
        yield from _options(old.get(key), new.get(key), added, f"{path}.{key}".lstrip("."))


def _check_config(config: GuerdonConfig, state: dict[str, Any] | None) -> None:
    """Check what needs no parts, before experts are trained."""
    check_config(config)
    if config.run.wandb:
        require("wandb", "wandb")
    if state is None and config.reward.checkpoint_path is not None:
        check_path(config.reward.checkpoint_path)


def _check_reward(config: GuerdonConfig, parts: Parts) -> None:
    reward, section = parts.reward, config.eval
    moves = reward.is_learned and reward.changes and section.select_by == "reward"
    if section.target_return is not None and moves:
        raise ValueError(
            "'eval.target_return' is set, but the scale of a reward that is trained beside the "
            "policy moves: leave it out, or set eval.select_by=env to stop by the environment's "
            "return"
        )
    if config.reward.pretrain and not reward.can_pretrain:
        raise ValueError(
            f"'reward.pretrain' is set, but nothing in {', '.join(reward.terms)} can be "
            f"trained before the policy acts: leave it out"
        )


def _saved_state(folder: RunFolder, exact: bool) -> tuple[dict[str, Any] | None, int]:
    """Return the state that a run is resumed from and its step.

    None and -1 for a run that was stopped before its first checkpoint.
    """
    root, name = folder.checkpoints, "scheduled" if exact else "latest"
    if not ((root / name).exists() if exact else checkpoint_steps(root)):
        if name not in folder.saved:
            return None, -1
        raise FileNotFoundError(
            f"{folder.path} has had a {name} checkpoint, but {root} has none: restore it"
            + (", or resume without --exact" if checkpoint_steps(root) else "")
            + f", or start a new run with `guerdon train {folder.config} run.dir=NEW`"
        )
    if not exact:
        return load_checkpoint(root)
    try:
        return load_checkpoint(root, "scheduled", strict=True)
    except (DamagedError, FileNotFoundError) as error:
        raise ValueError(
            f"{error}; without its last scheduled checkpoint a run cannot be resumed exactly: "
            "plain --resume continues from the latest whole one"
        ) from error


def _rewind(folder: RunFolder, reward: Reward, state: dict[str, Any] | None, step: int) -> None:
    """Make a run's checkpoints and its saved reward those of the step that it resumes from.

    The checkpoints come first: what is removed later belongs to checkpoints that are gone, and a
    process that is killed in between repeats the rest.
    """
    if state is None:
        folder.saved = ()
    drop_later(folder.checkpoints, step)
    if state is None:
        drop_later(folder.reward, step)
    else:
        save_reward(folder, step, reward)


def _load(
    config: GuerdonConfig, parts: Parts, state: dict[str, Any] | None, run_dir: str | Path | None
) -> None:
    """Load a checkpoint, or the reward of `checkpoint_path` where there is none."""
    if state is not None:
        try:
            parts.load_training_state(state)
        except (RuntimeError, ValueError, KeyError) as error:
            raise ValueError(
                f"the checkpoint in {run_dir} does not fit this config or this version of guerdon "
                f"({str(error).splitlines()[0]}): resume with the config and version that wrote it"
            ) from error
    elif config.reward.checkpoint_path is not None:
        restore_reward(parts.reward, config.reward)
    with seeded(0):  # what it draws does not change what layers draw after
        for model in parts.reward.models if config.reward.cotrain else ():
            model.prepare()


def _with_checkpoint_interval(config: GuerdonConfig) -> GuerdonConfig:
    if config.run.checkpoint_every is not None:
        return config
    length = config.env.max_episode_steps or registered_limit(config.env.id) or _EPISODE
    every = max(config.run.max_steps // 20, 3 * length * config.env.n_envs)
    run = config.run.model_copy(update={"checkpoint_every": every})
    return config.model_copy(update={"run": run})


def _recorder(
    config: GuerdonConfig, folder: RunFolder, display: Mode, step: int | None
) -> Recorder:
    title = f"{config.run.name} · {config.env.id} · {config.policy['type']} · seed {config.seed}"
    shown = make_display(config.run.max_steps, sys.stdout, display, title=title)
    name = f"{config.run.name} · seed {config.seed}" if config.run.wandb else None
    return Recorder(folder, shown, resume_step=step, wandb=name)


# --- beside the loop


class _Run:
    """A run with an open folder: what it does before, beside and after the loop."""

    def __init__(
        self,
        config: GuerdonConfig,
        parts: Parts,
        folder: RunFolder,
        recorder: Recorder,
        interrupted: Callable[[], bool],
        callback: Callable[..., Any] | None,
    ) -> None:
        self.config, self.parts = config, parts
        self.folder, self.recorder = folder, recorder
        self.evaluator = Evaluator(parts, config.eval, folder.best, recorder.text)
        run = config.run
        if callback is None and run.callback is not None:
            callback = find_object(run.callback, "run.callback")
        self.callback = callback
        assert run.checkpoint_every is not None
        self.monitor = Monitor(
            Budget(run.max_steps, run.max_updates, run.max_seconds, config.eval.target_return),
            evaluator=self.evaluator,
            eval_every=config.eval.every,
            log=self.log,
            log_every=run.log_every,
            save=self.save,
            save_every=run.checkpoint_every,
            show=recorder.progress,
            interrupted=interrupted,
        )

    def start(self, state: dict[str, Any] | None, step: int | None) -> None:
        """Restore counters and the best policy of a resumed run; pretrain the reward of a new one.

        Args:
            state: State of a checkpoint; None if there is none.
            step: Its step; None if the run is new.
        """
        say, reward = self.recorder.text, self.parts.reward
        if state is not None:
            self.monitor.load_training_state(state["monitor"])
            self.evaluator.load_training_state(state["evaluator"])
        if step is not None:
            self.evaluator.restore_best()
        say(f"{'started' if step is None else 'resumed'} at step {max(step or 0, 0)}")
        if state is None and self.config.reward.pretrain:
            say("training the reward before the policy acts")
            start = time.perf_counter()
            if metrics := reward.pretrain():
                self.recorder.log(0, metrics)
                say(f"trained the reward in {time.perf_counter() - start:.1f} s")
            else:
                say("the reward had nothing to learn from: 'reward.pretrain' changed nothing")

    def log(self, step: int, metrics: Mapping[str, Any]) -> Any:
        """Log metrics, and return what the callback returns."""
        self.recorder.log(step, metrics)
        if self.callback is None:
            return None
        numbers = {name: float(value) for name, value in metrics.items()}
        answer = self.callback(step, numbers, self.parts.policy)
        return not (isinstance(answer, bool | np.bool_) and not answer)

    def save(self, scheduled: bool) -> None:
        """Truncate open episodes, and save a checkpoint."""
        self.parts.clean_point()
        state = self.parts.training_state()
        state["monitor"] = self.monitor.training_state()
        state["evaluator"] = self.evaluator.training_state()
        state["config"], state["journal"] = _recorded(self.config), self.parts.journal.length
        self.recorder.sync()
        folder, steps = self.folder, self.monitor.progress.env_steps
        mark, keep = "scheduled" if scheduled else None, self.config.run.keep
        save_checkpoint(folder.checkpoints, steps, state, keep=keep, mark=mark)
        folder.saved = {*folder.saved, "latest", mark or "latest"}
        save_reward(folder, steps, self.parts.reward)
        if not self.monitor.progress.episodes and self.monitor.reason is None:
            self.recorder.text(
                f"step {steps}: no episode has ended yet, and each checkpoint truncates them: make "
                "'run.checkpoint_every' larger"
            )

    def finish(self) -> Summary:
        """Write the summary, and return it."""
        progress, best, reason = self.monitor.progress, self.evaluator.best, self.monitor.reason
        newest = self.evaluator.newest
        metrics = {} if newest is None else evaluation_metrics(newest)
        summary: Summary = {
            "env_steps": progress.env_steps,
            "updates": progress.updates,
            "wall_seconds": progress.seconds,
            "fps": progress.env_steps / max(progress.seconds, 1e-9),
            "eval_return_mean": metrics.get("eval/mean_reward", float("nan")),
            "eval_return_std": metrics.get("eval/std_reward", float("nan")),
            "best_eval_return_mean": best.get("return"),
            "stop_reason": reason,
            "seed": self.config.seed,
            "best_step": best.get("step"),
            "episodes": progress.episodes,
            **{name: metrics[key] for name, key in _SUCCESSES.items() if key in metrics},
        }
        if self.parts.images is not None:
            self.parts.images.flush()
            kinds = ("positive", "negative")
            summary["trajectories"] = dict(zip(kinds, self.parts.images.counts, strict=True))
        self.folder.write_summary(summary)
        say = self.recorder.text
        if not progress.updates and reason != "interrupted":
            say(
                "nothing was learned: the run ended before its first update (of an off-policy "
                "policy that comes after 'collect.warmup_steps')"
            )
        say(f"stopped: {reason}")
        if reason == "interrupted":
            say(
                "--resume continues from here; since this checkpoint is not a scheduled one, only "
                "--resume --exact, from the one before, repeats the uninterrupted run bit for bit"
            )
        return {**summary, "run_dir": str(self.folder.path)}
