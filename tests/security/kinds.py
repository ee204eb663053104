"""Every kind of file that guerdon reads: how a good one is made, and how it is read."""

import contextlib
import io
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch

import guerdon
from guerdon.cli import sweep as sweeping
from guerdon.cli.sweep import Run as SweepRun
from guerdon.compat.layouts import translated_fit
from guerdon.compat.rlinf.checkpoint import as_fit, as_safetensors, write_checkpoints
from guerdon.config import compose
from guerdon.config.trust import code_of, remember
from guerdon.data import (
    Batch,
    Demonstrations,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    load_demonstrations,
    load_preferences,
)
from guerdon.data.demonstrations import KEYS
from guerdon.data.frames import Trajectory, load_frames, read_trajectory, write_trajectory
from guerdon.data.journal import Journal
from guerdon.data.serializer import write_tree
from guerdon.data.spaces import space_to_json
from guerdon.lab.compare import compare_rewards
from guerdon.lab.report import write_report
from guerdon.nn.classifier import BinaryRewardClassifier, ClassifierConfig
from guerdon.training.callback import Callback
from guerdon.training.checkpoints import load_checkpoint, save_checkpoint
from guerdon.training.fit import _Fit, fit
from guerdon.training.fit_files import PART, STATE, FitConfig, compose_fit, load_classifier
from guerdon.training.run_folder import RunFolder
from tests.data.test_array_files import write_arrays
from tests.saved import test_saved
from tests.security.mutations import Kind
from tests.training import picturing
from tests.training.running import config_of

SAVED = test_saved.VERSIONS[-1]
SMALL = {"image_size": [3, 16, 16], "hidden_dim": 4, "num_spatial_blocks": 1, "width": 2}
OPTIONS = {"size": 24, "n_envs": 2, "stack_num": 2}


# --- buffers


def rows(step: int, n_envs: int = 2) -> dict[str, Any]:
    obs = np.arange(n_envs * 3, dtype="f4").reshape(n_envs, 3) + step
    end = np.arange(n_envs) + step
    return {
        "obs": {"a": obs, "b": obs[:, 0].astype(np.int64)},
        "act": np.arange(n_envs),
        "rew": obs[:, 0] / 2,
        "terminated": end % 5 == 4,
        "truncated": end % 7 == 6,
        "obs_next": {"a": obs + 1, "b": obs[:, 0].astype(np.int64) + 1},
    }


def filled(kind: type[ReplayBuffer], storage: str = "memory") -> ReplayBuffer:
    buffer = kind(**OPTIONS, seed=0, storage=storage)
    for step in range(20):
        buffer.add(rows(step))
        if step % 6 == 5:
            buffer.cut([step % 2])
    return buffer


def used(buffer: ReplayBuffer) -> Any:
    """What a buffer holds, after which everything is done with it that a run may do."""
    held = {"rows": buffer.stored_rows(), "written": buffer.written}
    if len(buffer):
        index = buffer.stored_rows()
        held["batch"] = buffer[index]
        for walk in (buffer.next, buffer.prev, buffer.episode_first, buffer.episode_last):
            walk(index)
        buffer.sample(16, length=3)
        buffer.get(index, "obs_next", stack_num=4)
        buffer.rollout()
        repr(buffer)
    for step in range(2 * OPTIONS["size"]):
        at = buffer.add(rows(step))
        if step % 5 == 3:
            buffer.cut()
        if step % 7 == 3:
            buffer.discard(at[:1])
        if isinstance(buffer, PrioritizedReplayBuffer):
            buffer.update_weight(at, np.full(len(at), step))
        buffer.sample(4)
    return held


def make_disk(folder: Path) -> None:
    filled(ReplayBuffer, f"disk:{folder / 'buffer'}")  # closed as it is deleted


def make_disk_of_a_killed_process(folder: Path) -> None:
    buffer = filled(PrioritizedReplayBuffer, f"disk:{folder / 'open'}")
    shutil.copytree(folder / "open", folder / "buffer")
    del buffer
    shutil.rmtree(folder / "open")


def read_disk(kind: type[ReplayBuffer]) -> Callable[[Path], Any]:
    return lambda folder: used(kind(**OPTIONS, seed=0, storage=f"disk:{folder / 'buffer'}"))


def save_buffer(kind: type[ReplayBuffer]) -> Callable[[Path], Any]:
    return lambda folder: filled(kind).save(folder / "buffer")


def read_buffer(kind: type[ReplayBuffer]) -> Callable[[Path], Any]:
    return lambda folder: used(kind.load(folder / "buffer"))


# --- demonstrations, preferences and frames


def copy_saved(*names: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        for name in names:
            source = SAVED / name
            folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)

    return make


def make_old_demonstrations(folder: Path) -> None:
    given = load_demonstrations("zoo:cartpole_fixed")
    episode = given.episodes[0][:5]
    entries = {key: episode[key] for key in KEYS}
    leaves = [{"path": [key], "kind": "array", "entry": key} for key in KEYS]
    write_arrays(folder / "shard_000000.npz", leaves, entries)
    meta = {
        "format": "guerdon demonstrations",
        "version": 1,
        "env_id": given.env_id,
        "observation_space": space_to_json(given.observation_space),
        "action_space": space_to_json(given.action_space),
        "episodes": [{"seed": 1, "length": 5, "shared_observations": False}],
        "shards": [{"file": "shard_000000.npz", "episodes": 1}],
    }
    (folder / "meta.json").write_text(json.dumps(meta))


def make_pickle(folder: Path) -> None:
    episode = load_demonstrations("zoo:cartpole_fixed").episodes[0]
    transitions = [
        {
            "obs": torch.as_tensor(episode.obs[i]) if i % 2 else episode.obs[i],
            "action": episode.act[i],
            "reward": float(episode.rew[i]),
            "done": i == 5,
            "info": {"text": "abc", "pair": (1, 2.5), "list": [None, True]},
        }
        for i in range(6)
    ]
    transitions = [{**row, "obs": np.asarray(row["obs"])} for row in transitions]
    extra = [{**row, "extra": torch.arange(3.0)} for row in transitions]
    (folder / "data.pkl").write_bytes(pickle.dumps([transitions, extra]))


def read_demonstrations(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        found: Demonstrations = load_demonstrations(folder / name if name else folder)
        repr(found)
        spaces = repr([found.observation_space, found.action_space])
        return [found.episodes, found.env_id, found.seeds, spaces, found.transitions()]

    return read


def read_preferences(folder: Path) -> Any:
    return [
        [each.pair, each.first, each.second, each.label, each.rater, each.time]
        for each in load_preferences(folder / "preferences.jsonl")
    ]


def make_frames(format_: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        for number, name in enumerate(("positive", "negative")):
            images = {"base_camera": np.arange(2 * 48, dtype=np.uint8).reshape(2, 3, 4, 4) + number}
            labels = np.float32([0, 1 - number])
            write_trajectory(folder / name, Trajectory(images, labels, not number), format=format_)

    return make


def read_frames(folder: Path) -> Any:
    positive = [read_trajectory(path) for path in sorted((folder / "positive").iterdir())]
    frames = load_frames(folder / "positive", folder / "negative", ["base_camera"])
    # A damaged negative trajectory is skipped, and reported.
    return [[each.images, each.labels, each.success_once] for each in positive], len(frames) > 0


# --- runs and fits


def make_run(folder: Path) -> None:
    copy_saved("run")(folder)
    RunFolder(folder / "run").info.write_text(json.dumps({"starts": [{"command": "guerdon"}]}))


def read_policy(folder: Path) -> Any:
    policy = guerdon.load_policy(folder / "run")
    return dict(policy.state_dict())


def read_reward(folder: Path) -> Any:
    obs = np.linspace(-0.1, 0.1, 8, dtype="f4").reshape(2, 4)
    reward = guerdon.load_reward(folder / "run")
    return reward.score(Batch(obs=obs, act=np.array([0, 1]), rew=np.zeros(2), obs_next=obs))


def read_run_files(folder: Path) -> None:
    run = SweepRun(folder / "run", [])
    RunFolder(folder / "run").starts()
    run.value("eval_return_mean")
    write_report(folder / "run", folder / "report.html")


def make_fit(folder: Path) -> None:
    config = ClassifierConfig(**SMALL)
    member = BinaryRewardClassifier(config)
    meta = {
        "model": config.model_dump(),
        "threshold": 0.5,
        "temperature": 1.0,
        "target_fpr": 0.01,
        "validation": {"precision": 1.0},
        "held_out": {"logits": np.zeros((1, 2), np.float32), "labels": np.array([True, False])},
        "data": {},
        "seed": 0,
        "split": 0.2,
    }
    state = {PART: {"members": [dict(member.state_dict())], "meta": meta}}
    save_checkpoint(folder / "fit", 1, state, keep=1, mark="best")
    (folder / "fit" / "fit.yaml").write_text(json.dumps(FitConfig().model_dump(mode="json")))


def read_fit(folder: Path) -> Any:
    members, meta = load_classifier(folder / "fit")
    return [dict(member.state_dict()) for member in members], meta["threshold"], meta["model"]


def make_encoder(folder: Path) -> None:
    member = BinaryRewardClassifier(ClassifierConfig(**SMALL))
    member.export_encoder(folder / "encoder.safetensors")


def read_encoder(folder: Path) -> None:
    path = str(folder / "encoder.safetensors")
    BinaryRewardClassifier(ClassifierConfig(**SMALL, pretrained_encoder_path=path))


def make_fit_config(folder: Path) -> None:
    text = "runner: {output_dir: out}\nreward:\n  save_dir: ${runner.output_dir}/x\n"
    text += "  optim: {lr: 1.0e-3}\n  model: &m\n    image_keys: [base_camera]\n  data: {}\n"
    (folder / "fit.yaml").write_text(text)


def fit_config(folder: Path) -> FitConfig:
    return picturing.config(folder / "fit", num_epochs=1, save_interval=4)


@cache
def real_fit() -> tempfile.TemporaryDirectory:
    """A fit, and beside it the frames, which are not damaged."""
    made = tempfile.TemporaryDirectory()
    folder = Path(made.name)
    picturing.write(folder, number=30)
    data = {f"{kind}_dir": str(folder / kind) for kind in ("positive", "negative")}
    fit(picturing.config(folder / "fit", num_epochs=1, data=data), display="none")
    shutil.rmtree(folder / "fit" / "tb")  # which is not read
    return made


def make_fit_with_test(folder: Path) -> None:
    shutil.copytree(Path(real_fit().name) / "fit", folder / "fit")


def read_report_of_fit(folder: Path) -> Any:
    write_report(folder / "fit", folder / "report.html")
    write_checkpoints(folder / "fit")


def make_state_of_fit(folder: Path) -> None:
    made = _Fit(fit_config(folder), picturing.frames(30))
    (folder / "fit").mkdir()
    write_tree(folder / "fit" / STATE, {"fit": made.training_state()}, "fit")


def read_state_of_fit(folder: Path) -> Any:
    made = _Fit(fit_config(folder), picturing.frames(30))
    made.restore(RunFolder(folder / "fit"))
    state = made.training_state()
    return state["step"], [learner["weights"] for learner in state["learners"]]


def make_pt_classifier(folder: Path) -> None:
    make_fit(folder)
    write_checkpoints(folder / "fit")
    (folder / "fit" / "step_1" / "checkpoint.pt").rename(folder / "mine.pt")
    shutil.rmtree(folder / "fit")


def read_pt_classifier(folder: Path) -> Any:
    members, meta = load_classifier(as_fit(folder / "mine.pt"))
    return [dict(member.state_dict()) for member in members], meta["threshold"]


def make_pt_encoder(folder: Path) -> None:
    state = {f"layer{i}.0.conv1.weight": torch.ones(2, 2, 3, 3) for i in (1, 2)}
    torch.save(state | {"conv1.weight": torch.ones(2, 3, 7, 7)}, folder / "mine.pt")


# --- runs that are resumed, swept and compared


class Stop(Callback):
    def on_start(self, run: Any) -> None:
        run.stop()


def make_resumable(case: str, **sections: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        run = {"max_steps": 128, "checkpoint_every": 64, "keep": 1}
        config = config_of(case, folder / "run", run=run, **sections)
        guerdon.train(config, seed=0, display="none")
        shutil.rmtree(folder / "run" / "tb")

    return make


def read_resumable(folder: Path) -> None:
    path = folder / "run"
    guerdon.train(resume=path, callback=Stop(), trust=True, display="none")


def make_alarms(folder: Path) -> None:
    copy_saved("run/config.yaml", "run/metrics.jsonl")(folder)
    rows = {"score": np.float32([0.5, 0.9]), "rew": np.float32([1, 2]), "act": np.array([0, 1])}
    for step, shape in ((64, (2, 4)), (128, (2, 3, 8, 8))):
        obs = np.ones(shape, np.uint8)
        tree = {"text": "an alarm", "transitions": {**rows, "obs": obs, "obs_next": obs}}
        save_checkpoint(folder / "run" / "alarms", step, {"alarm": tree}, keep=9)


def read_alarms(folder: Path) -> None:
    write_report(folder / "run", folder / "report.html")


def make_workflow(folder: Path) -> None:
    make_run(folder)
    make_fit_with_test(folder)
    summary = {"env_steps": 9, "eval_success_rate": 0.5, "eval_model_success_rate": 0.5}
    fitted = {"pr_auc": 1.0, "precision": 1.0, "recall": 0.5, "calibration_error": 0.1}
    result = {"seed": 0, "collect": summary, "learn": summary, "fit": fitted}
    result |= {"trajectories": {"positive": 1, "negative": 2}, "seconds": {"collect": 1.5}}
    (folder / "workflow.json").write_text(json.dumps(result))
    for stage in ("collect", "learn"):
        copy_saved("run/config.yaml", "run/summary.json", "run/metrics.jsonl")(folder / stage)
        for path in (folder / stage / "run").iterdir():
            path.rename(folder / stage / path.name)
    shutil.rmtree(folder / "run")
    (folder / "fit").rename(folder / "classifier")


def make_compared(folder: Path) -> None:
    copy_saved("run", "demonstrations")(folder)


def constant_reward(batch: Batch) -> np.ndarray:
    return np.asarray(batch.obs, np.float32).reshape(len(batch.rew), -1)[:, 0]


def read_compared(folder: Path) -> None:
    where = folder / "demonstrations"
    rewards = (folder / "run", constant_reward)
    compare_rewards(*rewards, on=where, samples=16, pairs=4, out=folder / "out")


def opened_sweep(folder: Path) -> tuple[Any, Any, Any]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    arguments = ["cartpole_ppo", "policy.gamma=0.9,0.99", "seed=0"]
    sweep = sweeping.Sweep("sweep", arguments, [], folder / "sweep", 1, "eval_return_mean")
    sweep.prepare([], ["eval_return_mean", "policy.gamma=0.9,0.99"])
    kinds = optuna.distributions
    space = {key: sweeping._distribution(kinds, each) for key, each in sweep.swept.items()}
    study = sweeping._study(optuna, folder / "sweep" / "optuna.log", space)
    return sweep, study, space


def make_sweep(folder: Path) -> None:
    sweep, study, space = opened_sweep(folder)
    for each in sweeping._trials(sweep, study, space, 2):
        each.runs[0].folder.mkdir()
        for name in ("config.yaml", "metrics.jsonl", "summary.json"):
            shutil.copy(SAVED / "run" / name, each.runs[0].folder)
    sweeping._tell(sweep, study)


def read_sweep(folder: Path) -> None:
    sweep, study, space = opened_sweep(folder)
    for each in sweeping._trials(sweep, study, space, 2):
        assert {*each.values.values()} <= {"0.9", "0.99"}
    sweeping._tell(sweep, study)
    with contextlib.redirect_stdout(io.StringIO()):
        sweep.report()


def make_journal(folder: Path) -> None:
    make_frames("npz")(folder)
    copy_saved("preferences.jsonl", "preferences_segments")(folder)
    journal = Journal()
    journal.open(folder / "outputs.jsonl")
    for path in sorted(folder.glob("*tive/*")):
        journal.note(path.absolute(), path.read_bytes())
    file = folder / "preferences.jsonl"
    journal.note(file, file.read_bytes().strip(), pair="a")
    journal.close()
    file = folder / "outputs.jsonl"
    file.write_text(file.read_text().replace(str(folder.absolute()), "/case"))


def read_journal(folder: Path) -> None:
    journal, file = Journal(), folder / "outputs.jsonl"
    if file.is_file():  # of the copy that is read
        file.write_bytes(file.read_bytes().replace(b"/case", bytes(folder.absolute())))
    try:
        journal.open(file, 0)
    finally:
        journal.close()


def make_record(folder: Path) -> None:
    copy_saved("run/config.yaml")(folder)
    config = folder / "run" / "config.yaml"
    config.write_text(config.read_text().replace("imports: []", "imports: [colorsys]", 1))
    with state_home(folder / "state"):
        RunFolder(folder / "run").info.write_text(json.dumps({"starts": [{"command": "guerdon"}]}))
        remember(folder / "run", ["colorsys"], {"imports": []})


def read_record(folder: Path) -> None:
    with state_home(folder / "state"), code_of(folder / "run"):
        compose(folder / "run")


@contextlib.contextmanager
def state_home(folder: Path) -> Iterator[None]:
    before = os.environ.pop("XDG_STATE_HOME", None)
    os.environ["XDG_STATE_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["XDG_STATE_HOME"]
        if before is not None:
            os.environ["XDG_STATE_HOME"] = before


KINDS: dict[str, Kind] = {
    "checkpoint": Kind(
        copy_saved("run/checkpoints"),
        lambda folder: load_checkpoint(folder / "run" / "checkpoints", strict=True),
        checked=True,
        share=2,
    ),
    "best policy": Kind(copy_saved("run/best", "run/config.yaml"), read_policy, share=0.5),
    "reward": Kind(
        copy_saved("run/reward", "run/checkpoints", "run/config.yaml"), read_reward, share=0.5
    ),
    "saved buffer": Kind(
        save_buffer(ReplayBuffer), read_buffer(ReplayBuffer), checked=True, share=2
    ),
    "prioritized buffer": Kind(
        save_buffer(PrioritizedReplayBuffer), read_buffer(PrioritizedReplayBuffer), checked=True
    ),
    "disk buffer": Kind(make_disk, read_disk(ReplayBuffer), checked=True, share=2),
    "disk buffer, killed": Kind(
        make_disk_of_a_killed_process, read_disk(PrioritizedReplayBuffer), share=2
    ),
    "demonstrations": Kind(
        copy_saved("demonstrations"), read_demonstrations("demonstrations"), checked=True, share=2
    ),
    "old demonstrations": Kind(make_old_demonstrations, read_demonstrations("")),
    "demonstration pickle": Kind(make_pickle, read_demonstrations("data.pkl"), share=3),
    "preferences": Kind(
        copy_saved("preferences.jsonl", "preferences_segments"), read_preferences, share=2
    ),
    "frames .npz": Kind(make_frames("npz"), read_frames, checked=True),
    "frames .npy": Kind(make_frames("npy"), read_frames),
    "config": Kind(copy_saved("run/config.yaml"), lambda folder: compose(folder / "run"), share=2),
    "config of a fit": Kind(make_fit_config, lambda folder: compose_fit(folder / "fit.yaml")),
    "files of a run": Kind(make_run, read_run_files, share=2),
    "fit": Kind(make_fit, read_fit, checked=True, share=0.5),
    "encoder": Kind(make_encoder, read_encoder),
    "fit with a test": Kind(make_fit_with_test, read_report_of_fit),
    "state of a fit": Kind(make_state_of_fit, read_state_of_fit, checked=True, share=0.5),
    "classifier .pt": Kind(make_pt_classifier, read_pt_classifier, share=0.5),
    "encoder .pt": Kind(
        make_pt_encoder, lambda folder: as_safetensors(folder / "mine.pt"), share=0.5
    ),
    "config of RLinf": Kind(
        make_fit_config,
        lambda folder: compose_fit(*translated_fit(str(folder / "fit.yaml"), [])),
        share=0.5,
    ),
    "resumed run": Kind(make_resumable("dqn_prioritized_3_step"), read_resumable, share=0.5),
    "resumed run of shards": Kind(
        make_resumable("ppo", collect={"shards": 3, "n_step": 32}), read_resumable, share=0.5
    ),
    "alarms": Kind(make_alarms, read_alarms),
    "three stages": Kind(make_workflow, lambda folder: write_report(folder), share=0.5),
    "compared rewards": Kind(make_compared, read_compared, share=0.5),
    "sweep": Kind(make_sweep, read_sweep, share=0.5),
    "journal": Kind(make_journal, read_journal),
    "record of trusted code": Kind(make_record, read_record, share=0.5),
}
