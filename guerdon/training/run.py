"""`train`: train a policy from a config, or resume a run."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from gymnasium import spaces

import guerdon
from guerdon import startup
from guerdon.config import (
    GuerdonConfig,
    compose,
    override_values,
    plain_values,
    registry_of,
    sources,
    to_yaml,
)
from guerdon.config.files import with_absolute_paths
from guerdon.config.imports import find_object, refuse_while_importing
from guerdon.config.trust import code_of, remember
from guerdon.data.leaves import check_like
from guerdon.data.serializer import DamagedError
from guerdon.envs.ids import registered_limit
from guerdon.extras import require
from guerdon.limits import DAMAGE, reading
from guerdon.nn import seeded
from guerdon.policy import Policy
from guerdon.reward import Reward
from guerdon.training.alarms import Alarm, History
from guerdon.training.callback import Callback, Function, as_callback
from guerdon.training.checkpoints import (
    checkpoint_steps,
    drop_later,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from guerdon.training.display import Display, Mode, make_display
from guerdon.training.evaluation import Evaluator, evaluation_metrics
from guerdon.training.experts import make_experts
from guerdon.training.monitor import Budget, Monitor, Progress
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
from guerdon.training.reward_files import (
    check_path,
    restore_reward,
    save_reward,
    sections_of,
    with_reward_of,
)
from guerdon.training.run_data import copy_data, data_to_copy, with_copies_in
from guerdon.training.run_folder import Recorder, RunFolder, make_folder
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


class Host(Protocol):
    """A worker that a run's loop is in, for the process that started the run."""

    @property
    def display(self) -> Display:
        """The display of the run."""

    def asked(self) -> bool:
        """Return whether the user has asked the run to stop."""

    def runtime(self, config: GuerdonConfig) -> AbstractContextManager[Any]:
        """Return the other processes of the run."""


KEPT_ALARMS = 20
"""Number of steps with alarms whose transitions are kept."""
_EPISODE = 1_000  # assumed length of episodes without a limit
# Options that may not change when a run is resumed, as all of policy.model and reward.terms, but
# for the options of a term that follow.
_FIXED = {
    "seed",
    "env.id",
    "env.n_envs",
    "collect.shards",
    "policy.type",
    "policy.init_from",
    "reward.checkpoint_path",
}
_MAY_CHANGE = {
    "learning_rate",
    "batch_size",
    "update_per_collect",
    "train_every",
    "weight",
    "record_path",
    "positive_dir",
    "negative_dir",
    "expert_data_path",
    "preferences_path",
}
# Metrics of the last evaluation in the summary, where they are known.
_OPTIONAL = {
    "eval_learned_return_mean": "reward/eval_return",
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
    trust: bool = False,
    display: Mode = "auto",
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    callback: Callback | Function | None = None,
    host: Host | None = None,
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
        trust: Whether to run the code that another user's run names (of `resume`, `from_reward`, or
            a run directory as `source`).
        display: What to show: ``auto``, ``live``, ``lines`` or ``none``.
        env_setting: A function that makes an environment, and its arguments for the environments
            that collect and for those that evaluate, instead of the config's ``env.id``.
        model: A network for the policy, instead of its own.
        policy_fn: A policy class, instead of ``policy.type``.
        callback: A `Callback`; or a function to call with the step, the metrics and the policy
            whenever metrics are logged, and the run stops if it returns False. The config's
            ``run.callback`` is called, too.
        host: The worker of `guerdon.parallel` that this is called in, if the loop is in one.
    """
    refuse_while_importing("train")
    changes = [*overrides, *([] if seed is None else [f"seed={seed}"])]
    _check_arguments(source, resume, exact, from_reward)
    given = (source, *changes)
    with ExitStack() as stack:
        values, read_from = override_values(changes), resume or sources.run_dir_of(source)
        used = stack.enter_context(code_of(read_from, trust=trust, own=values))
        if isinstance(source, GuerdonConfig):
            source = source.model_dump()
        if from_reward is not None:
            named = source if sources.is_preset(source) else None
            source = sections_of(source)
            stack.enter_context(code_of(from_reward, trust=trust, own=[source, values]))
            source = with_reward_of(source, named, changes, from_reward)
        if resume is None:
            config = compose(source, changes)
        else:
            config = compose_run(resume, changes, policy_fn)
        config = _with_shards(config)
        startup.begin()
        if resume is None:
            config = with_absolute_paths(config)
        if config.runtime.num_learners and host is None:
            start: Callable[..., Result] = _parallel("learner").train_in_worker
            return start(
                config, display, given,
                resume=resume, exact=exact, from_reward=from_reward, trust=trust,
                env_setting=env_setting, model=model, policy_fn=policy_fn, callback=callback,
            )  # fmt: skip
        stack.enter_context(threads(config.run.threads))
        state, step, changed = None, None, dict[str, Any]()
        if resume is not None:
            state, step = _saved_state(RunFolder(resume), exact)
            _check_state(state, resume)
            changed = _changes(config, state, resume, changes)
        _check_config(config, state)
        # Before the folder: a config that cannot be built leaves nothing behind.
        made = make_experts(config, display)
        seed, device = Seeds.of(config.seed).layers, find_device(config.run.device)
        stack.enter_context(seeded(seed, device))
        runtime = stack.enter_context(_runtime(config, host))
        parts = make_parts(
            made, env_setting=env_setting, model=model, policy_fn=policy_fn,
            runtime=runtime,
        )  # fmt: skip
        stack.callback(parts.close)
        _check_reward(config, parts)
        _load(config, parts, state, resume)
        config = _with_checkpoint_interval(config)
        record = partial(remember, used=used, values=config.model_dump())
        run: Run | None = None
        tell = lambda: (Display() if run is None else run.recorder).interrupt()  # noqa: E731
        asked = host.asked if host else stack.enter_context(interrupts(tell))
        if resume is None:
            begun = lambda: run is not None and run.progress.env_steps > 0  # noqa: E731
            config, folder = stack.enter_context(_new_folder(config, record, begun))
        else:
            folder = stack.enter_context(RunFolder.reopen(resume))
            record(folder.path)
            folder.write_config(to_yaml(config, folder.path))
            _rewind(folder, parts.reward, state, -1 if step is None else step)
        parts.journal.open(folder.journal, 0 if state is None else state.get("journal"))
        if config.reward.collect_data:
            parts.keep_images(config.reward.data_collection)
        recorder = stack.enter_context(_recorder(config, folder, display, step, host))
        for key, (old, new) in changed.items():
            recorder.text(f"{key} was {old}, and is now {new}")
        run = Run(config, parts, folder, recorder, asked, callback)
        if runtime is not None:
            stack.enter_context(runtime.recording(run))
        run.start(state, step)
        run_trainer(parts, config, run.monitor)
        return Result(parts.policy.eval(), parts.reward, run.finish(), folder.path)


# --- before the loop


def _check_arguments(source: Any, resume: Any, exact: bool, from_reward: Any) -> None:
    if resume is not None and source is not None:
        raise ValueError("a run is resumed with its own config: leave the preset or file out")
    if resume is not None and from_reward is not None:
        raise ValueError("a run is resumed with its own reward: leave 'from_reward' out")
    if resume is None and exact:
        raise ValueError("'exact' says how a run is resumed: give 'resume', too")


def _changes(
    config: GuerdonConfig, state: dict[str, Any] | None, run_dir: str | Path, changes: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """Return what differs from the config of a checkpoint: old and new value by key.

    Without a checkpoint, the config file counts. What is learned may not change.
    """
    folder = RunFolder(run_dir)
    root, now = folder.checkpoints, _recorded(config, folder)
    if state is None and checkpoint_steps(root):  # from which the run is not resumed
        state = load_checkpoint(root, parts=("config",))[0]
    before = None if state is None else state.get("config")
    if before is None:
        imports = [each for each in changes if each.startswith("imports=")]
        before = _recorded(compose_run(run_dir, imports), folder)
    # Another version of guerdon may have added options.
    added = before.pop("version") == now.pop("version")
    changed = {key: (old, new) for key, old, new in _options(before, now, added) if old != new}
    for key, (old, new) in changed.items():
        names = key.split(".")
        learned = key in _FIXED or names[:2] in (["policy", "model"], ["reward", "terms"])
        if learned and not (names[0] == "reward" and _MAY_CHANGE.intersection(names[3:])):
            raise ValueError(f"{key} of a run cannot change on resume: it is {old}, not {new}")
    return changed


def _recorded(config: GuerdonConfig, folder: RunFolder) -> dict[str, Any]:
    """Return what a checkpoint records of a config: all that training depends on."""
    values = plain_values(config, folder.path)
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
    if state is None and config.policy.get("init_from") is not None:
        try:
            load_weights(config.policy["init_from"])
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"'policy.init_from': {error}; name the directory of a run that saved its policy"
            ) from error


def _check_reward(config: GuerdonConfig, parts: Parts) -> None:
    reward, section = parts.reward, config.eval
    moves = reward.is_learned and reward.changes and section.select_by == "reward"
    if section.target_return is not None and moves:
        raise ValueError(
            "'eval.target_return' is set, but the scale of a reward that is trained with the "
            "policy changes: leave it out, or set eval.select_by=env to stop by the environment's "
            "return"
        )
    if config.reward.pretrain and not reward.can_pretrain:
        raise ValueError(
            f"'reward.pretrain' is set, but nothing in {', '.join(reward.terms)} can be "
            f"trained before the policy acts: leave it out"
        )


def _saved_state(folder: RunFolder, exact: bool) -> tuple[dict[str, Any] | None, int]:
    """Return the state that a run is resumed from and its step.

    None and -1 for a run that was stopped before its first checkpoint; if its ``run.json`` does not
    say so, one that has not trained.
    """
    root, name = folder.checkpoints, "scheduled" if exact else "latest"
    if not ((root / name).exists() if exact else checkpoint_steps(root)):
        saved = folder.saved
        if not folder.has_trained() if saved is None else name not in saved:
            return None, -1
        what = "has trained" if saved is None else f"has had a {name} checkpoint"
        raise FileNotFoundError(
            f"{folder.path} {what}, but {root} has no {name} checkpoint: restore it"
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
            "--resume without --exact continues from the latest intact one"
        ) from error


def _check_state(state: dict[str, Any] | None, run_dir: str | Path) -> None:
    """Raise an error if a checkpoint has something else in the place of its config or journal."""
    config, journal = (state or {}).get("config"), (state or {}).get("journal")
    known = config is None or (isinstance(config, dict) and "version" in config)
    if not known or not (journal is None or (isinstance(journal, int) and journal >= 0)):
        raise DamagedError(f"the checkpoint in {run_dir} is damaged: its config cannot be read")


def _rewind(folder: RunFolder, reward: Reward, state: dict[str, Any] | None, step: int) -> None:
    """Make a run's checkpoints and its saved reward those of the step that it resumes from.

    The checkpoints come first: what is removed later belongs to checkpoints that are gone, and a
    process that is killed in between repeats the rest.
    """
    if state is None:
        folder.saved = ()
    drop_later(folder.checkpoints, step)
    if folder.alarms.exists():
        kept = [each for each in checkpoint_steps(folder.alarms) if each <= step]
        drop_later(folder.alarms, max(kept, default=-1))
    if state is None:
        drop_later(folder.reward, step)
    else:
        save_reward(folder, step, reward)


def _load(
    config: GuerdonConfig, parts: Parts, state: dict[str, Any] | None, run_dir: str | Path | None
) -> None:
    """Load a checkpoint; where there is none, `init_from` and the reward of `checkpoint_path`."""
    if state is not None:
        try:
            parts.load_training_state(state)
        except DAMAGE as error:
            raise ValueError(
                f"the checkpoint in {run_dir} does not fit this config or this version of guerdon "
                f"({str(error).splitlines()[0]}): resume with the config and version that wrote it"
            ) from error
    else:
        if (run := config.policy.get("init_from")) is not None:
            _start_from(parts.policy, run)
        if config.reward.checkpoint_path is not None:
            restore_reward(parts.reward, config.reward)
    with seeded(0):  # does not change the random numbers of layers
        for model in parts.reward.models if config.reward.cotrain else ():
            model.prepare()


def _start_from(policy: Policy, run: str) -> None:
    """Load the weights of another run's policy; of a cloned one, those of the network that acts."""
    if (clone := _of_clone(run)) is not None and clone["type"] != policy.config.type:
        _start_from_clone(policy, run, clone)
        return
    weights, ours = load_weights(run)[0], policy.state_dict()
    shapes = [
        (name, *(tuple(each[name].shape) if name in each else "not" for each in (weights, ours)))
        for name in dict.fromkeys((*weights, *ours))
    ]
    misfits = [
        f"{name} is {theirs} there and {here} here"
        for name, theirs, here in shapes
        if theirs != here
    ]
    if misfits:
        raise ValueError(
            f"the policy of {run} ('policy.init_from') does not fit this one: "
            f"{', '.join(misfits)}; use its 'policy.type' and 'policy.model', and the same spaces"
        )
    with reading(run):
        check_like(weights, ours, "the policy")
    policy.load_state_dict(weights)


def _with_shards(config: GuerdonConfig) -> GuerdonConfig:
    """Write the number of shards to the config, so that the run can be resumed anywhere."""
    if registry_of("policy").get(config.policy["type"]).offline:
        return config  # it collects nothing
    collect = config.collect.model_copy(update={"shards": config.n_shards})
    return config.model_copy(update={"collect": collect})


def _of_clone(run: str) -> dict[str, Any] | None:
    """Return the section ``policy`` of a run of `bc` or `dagger`; None for other runs."""
    folder = RunFolder(run)
    stored = sources.read(folder.path) if folder.config.is_file() else {}
    policy: dict[str, Any] = stored.get("policy") or {}
    cloned = policy.get("type") in ("bc", "dagger")
    return policy if cloned else None


def _start_from_clone(policy: Policy, run: str, theirs: Mapping[str, Any]) -> None:
    """Load the network of a clone into the network that acts."""
    ours, model = policy.config.model, theirs["model"]
    squash = hasattr(policy, "actor") and isinstance(policy.action_space, spaces.Box)
    layers = ("keys", "encoder", "hidden", "activation")
    compared: list[tuple[str, Any, Any]] = [
        (f"model.{key}", model.get(key), getattr(ours, key)) for key in layers
    ]
    normalizes = bool(model.get("normalize_obs")), bool(ours.normalize_obs)
    compared += [("model.normalize_obs", *normalizes), ("squash", theirs.get("squash"), squash)]
    needed = [
        f"policy.{key}={json.dumps(here, separators=(',', ':'))}".replace('"', "")
        for key, there, here in compared
        if there != here
    ]
    fix = f"; clone with {' '.join(needed)}" if needed else ""
    try:
        if model["activation"] != ours.activation:
            raise ValueError(f"its activation is {model['activation']}, here {ours.activation}")
        policy.load_actor(load_weights(run)[0])
    except ValueError as error:
        raise ValueError(
            f"the clone of {run} ('policy.init_from') does not fit {policy.config.type}: "
            f"{error}{fix}"
        ) from error


def _with_checkpoint_interval(config: GuerdonConfig) -> GuerdonConfig:
    if config.run.checkpoint_every is not None:
        return config
    length = config.env.max_episode_steps or registered_limit(config.env.id) or _EPISODE
    offline = registry_of("policy").get(config.policy["type"]).offline
    every = max(config.run.max_steps // 20, 1 if offline else 3 * length * config.env.n_envs)
    run = config.run.model_copy(update={"checkpoint_every": every})
    return config.model_copy(update={"run": run})


def _parallel(name: str) -> Any:
    """Return a module of `guerdon.parallel`; they import Ray."""
    require("ray", "ray")
    return import_module(f"guerdon.parallel.{name}")


def _runtime(config: GuerdonConfig, host: Host | None) -> AbstractContextManager[Any]:
    """Return the processes of a run; None for a run in this one, which does not import Ray."""
    if config.runtime.type == "serial":
        return nullcontext()
    made = _parallel("runtime").RayRuntime(config) if host is None else host.runtime(config)
    return cast("AbstractContextManager[Any]", made)


@contextmanager
def _new_folder(
    config: GuerdonConfig, prepare: Callable[[Path], object], begun: Callable[[], bool]
) -> Iterator[tuple[GuerdonConfig, RunFolder]]:
    """Make the folder of a new run; an error before anything was collected removes it.

    Yields:
        The config, which names the copies of data in the folder, and the folder.
    """
    named = config.run.dir is not None
    path = Path(config.run.dir or make_folder(config.run.name, config.seed))
    keep = named and path.is_dir()
    others = set(path.iterdir()) if keep else set[Path]()
    names = data_to_copy(config)
    config = with_copies_in(config, names, path)

    def begin(folder: Path) -> None:
        prepare(folder)
        copy_data(names, folder)

    with RunFolder.create(path, to_yaml(config, path), begin) as folder:
        try:
            yield config, folder
        except BaseException:
            if not begun():
                folder.remove(others, keep)
                if not named:
                    with suppress(OSError):  # there are other runs
                        for each in path.parents[:2]:
                            each.rmdir()
            raise


def display_of(config: GuerdonConfig, mode: Mode) -> Display:
    """Make the display of a run."""
    title = f"{config.run.name} · {config.env.id} · {config.policy['type']} · seed {config.seed}"
    return make_display(config.run.max_steps, sys.stdout, mode, title=title)


def _recorder(
    config: GuerdonConfig, folder: RunFolder, display: Mode, step: int | None, host: Host | None
) -> Recorder:
    shown = display_of(config, display) if host is None else host.display
    name = f"{config.run.name} · seed {config.seed}" if config.run.wandb else None
    return Recorder(folder, shown, resume_step=step, wandb=name)


# --- during the loop


class Run:
    """A run with an open folder: what it does before, beside and after the loop.

    For callbacks it has `policy`, `reward`, `parts`, `config`, `progress`, `path`, `say`, `stop`.
    """

    def __init__(
        self,
        config: GuerdonConfig,
        parts: Parts,
        folder: RunFolder,
        recorder: Recorder,
        interrupted: Callable[[], bool],
        callback: Callback | Function | None,
    ) -> None:
        self.config, self.parts = config, parts
        self.policy, self.reward = parts.policy, parts.reward
        self.folder, self.path = folder, folder.path
        self.recorder, self.say = recorder, recorder.text
        self.evaluator = Evaluator(parts, config.eval, folder.best, recorder.text)
        run = config.run
        given = [] if callback is None else [callback]
        if run.callback is not None:
            given.append(find_object(run.callback, "run.callback"))
        self.callbacks = list(map(as_callback, given))
        self.history = History.of(self.reward)
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
            event=self.event,
            offline=parts.policy.offline,
        )
        self.stop = self.monitor.stop

    @property
    def progress(self) -> Progress:
        """How far the run has come; updates are counted after each iteration."""
        return self.monitor.progress

    def event(self, name: str, *arguments: Any) -> None:
        """Call a method of the callbacks."""
        for callback in self.callbacks:
            getattr(callback, f"on_{name}")(self, *arguments)

    def start(self, state: dict[str, Any] | None, step: int | None) -> None:
        """Restore counters and the best policy of a resumed run; pretrain the reward of a new one.

        Args:
            state: State of a checkpoint; None if there is none.
            step: Its step; None if the run is new.
        """
        say, reward = self.recorder.text, self.parts.reward
        if state is not None:
            with reading(self.folder.checkpoints):
                self.monitor.load_training_state(state["monitor"])
                if self.monitor.step != step:
                    raise ValueError(f"the checkpoint of step {step} is of another step")
                self.evaluator.load_training_state(state["evaluator"])
                if "alarms" in state:  # not of an older version
                    self.history.load_training_state(state["alarms"])
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
        self.event("start")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log metrics; after an evaluation, also alarms about the reward."""
        before, new = self.history.holding, self.history.add(step, metrics)
        if new is not None and self.reward.ood != "off":
            metrics = {**metrics, "reward/alarms": len(self.history.holding)}
        self.recorder.log(step, metrics)
        for alarm in new or ():
            self._raise(step, alarm)
        holding = {alarm[:2] for alarm in self.history.holding}
        for alarm in before:
            if alarm[:2] not in holding:
                self.recorder.text(f"step {step}: this alarm has ended: {alarm.text}")
        self.event("log", {name: float(value) for name, value in metrics.items()})

    def _raise(self, step: int, alarm: Alarm) -> None:
        """Warn, and save the transitions to look at."""
        newest, where = self.evaluator.newest, ""
        found = newest.familiarity.get(alarm.term) if newest is not None else None
        if found is not None and found.looked_at:
            tree = {"text": alarm.text, "transitions": found.looked_at.to_dict()}
            where = f"; transitions to look at: {self.folder.alarms / f'step_{step}'}"
            try:
                save_checkpoint(self.folder.alarms, step, {"alarm": tree}, keep=KEPT_ALARMS)
            except OSError as error:
                where = f"; they could not be saved: {error.strerror or error}"
        self.recorder.text(f"step {step}: alarm: {alarm.text}{where}")

    def save(self, scheduled: bool) -> None:
        """Truncate open episodes, and save a checkpoint."""
        self.parts.clean_point()
        state = self.parts.training_state()
        state["monitor"] = self.monitor.training_state()
        state["evaluator"] = self.evaluator.training_state()
        state["alarms"] = self.history.training_state()
        state["config"] = _recorded(self.config, self.folder)
        state["journal"] = self.parts.journal.length
        self.recorder.sync()
        folder, steps = self.folder, self.monitor.step
        mark, keep = "scheduled" if scheduled else None, self.config.run.keep
        try:
            path = save_checkpoint(folder.checkpoints, steps, state, keep=keep, mark=mark)
            folder.saved = {*(folder.saved or ()), "latest", mark or "latest"}
            save_reward(folder, steps, self.parts.reward)
        except OSError as error:
            if self.monitor.stop_reason() is not None:  # there is no next one
                hint = f"free some space, then continue with --resume {folder.path}"
                raise OSError(error.errno, f"{error.strerror or error}; {hint}") from error
            self.recorder.warn(f"{error.strerror or error}; the next one is tried at its time")
        else:
            self.event("checkpoint", path)
        progress = self.monitor.progress
        if scheduled and progress.env_steps and not progress.episodes and not self.monitor.reason:
            self.recorder.text(
                f"step {steps}: no episode has ended yet, and each checkpoint truncates them: make "
                "'run.checkpoint_every' larger"
            )

    def finish(self) -> Summary:
        """Write the summary, and return it."""
        self.evaluator.restore_best()  # if the disk was full when it was to be saved
        progress, best, reason = self.monitor.progress, self.evaluator.best, self.monitor.reason
        newest = self.evaluator.newest
        metrics = {} if newest is None else evaluation_metrics(newest)
        summary: Summary = {
            "env_steps": progress.env_steps,
            "updates": progress.updates,
            "wall_seconds": progress.seconds,
            "fps": self.monitor.step / max(progress.seconds, 1e-9),
            "eval_return_mean": metrics.get("eval/mean_reward", float("nan")),
            "eval_return_std": metrics.get("eval/std_reward", float("nan")),
            "best_eval_return_mean": best.get("return"),
            "stop_reason": reason,
            "seed": self.config.seed,
            "best_step": best.get("step"),
            "episodes": progress.episodes,
            **{name: metrics[key] for name, key in _OPTIONAL.items() if key in metrics},
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
        summary["run_dir"] = str(self.path)
        self.event("end", summary)
        return summary
