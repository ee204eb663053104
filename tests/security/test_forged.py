"""Files that fit their format and their checksums, but say what guerdon has never written."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
import torch

from guerdon.cli.errors import sentence_of
from guerdon.data import Batch, Preference, load_preferences, save_preferences
from guerdon.data.journal import Journal
from guerdon.limits import DAMAGE
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from guerdon.training.fit_files import load_classifier
from guerdon.training.replay import load_reward
from tests.cli.tiny import BUDGET, guerdon, train
from tests.saved import test_saved
from tests.security.kinds import make_fit


def refused(*arguments):
    """The sentence with which a command ends."""
    result = guerdon(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


# --- checkpoints


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


@pytest.fixture
def forged(run, tmp_path):
    """A function that changes the state of all checkpoints of a copy of the run."""

    def forge(change, name="checkpoints"):
        shutil.copytree(run, tmp_path / "run")
        folder = tmp_path / "run" / name
        states = [load_checkpoint(folder, step)[0] for step in checkpoint_steps(folder)]
        for step, state in zip(checkpoint_steps(folder), states, strict=True):
            change(state)
            save_checkpoint(folder, step, state, keep=9, mark="scheduled")
        return tmp_path / "run"

    return forge


def resume(folder, *more):
    return ("train", "--resume", folder, "run.max_steps=512", "--display", "none", *more)


def named(part, **values):
    return lambda state: state[part].update(values)


def named_value(part, value):
    return lambda state: state.update({part: value})


def weights(change):
    def forge(state):
        state["policy"]["module"] = {k: change(x) for k, x in state["policy"]["module"].items()}

    return forge


def moments(**changes):
    def forge(state):
        for optimizer in state["policy"]["optimizers"].values():
            for name, change in changes.items():
                optimizer[name] = change(optimizer[name]) if callable(change) else change

    return forge


def steps(**values):
    return lambda state: state["monitor"]["progress"].update(values)


STATES = {
    "config: a number": lambda state: state.update(config=3),
    "config: no version": lambda state: state["config"].pop("version"),
    "config: another network": lambda state: state["config"]["policy"].update(model={"hidden": 9}),
    "journal: text": lambda state: state.update(journal="../thesis"),
    "journal: negative": lambda state: state.update(journal=-1),
    "policy: gone": lambda state: state.pop("policy"),
    "policy: a number": lambda state: state.update(policy=3),
    "policy: no numbers": weights(lambda each: each * np.nan),
    "policy: infinite": weights(lambda each: each + np.inf),
    "policy: another dtype": weights(lambda each: each.double()),
    "policy: whole numbers": weights(lambda each: each.int()),
    "policy: arrays": weights(lambda each: each.numpy()),
    "policy: one weight more": lambda state: state["policy"]["module"].update(x=torch.zeros(3)),
    "policy: one weight less": lambda state: state["policy"]["module"].popitem(),
    "policy: updates": named("policy", updates=-1),
    "policy: many updates": named("policy", updates=10**30),
    "policy: half an update": named("policy", updates=0.5),
    "policy: no updates": named("policy", updates=None),
    "policy: generator": named("policy", generator=torch.zeros(3, dtype=torch.uint8)),
    "optimizer: one number": moments(exp_avg_sq=torch.zeros(1)),
    "optimizer: negative": moments(exp_avg_sq=lambda each: each - 1),
    "optimizer: no numbers": moments(exp_avg=lambda each: each * np.nan),
    "optimizer: another dtype": moments(exp_avg=lambda each: each.double()),
    "optimizer: gone": named("policy", optimizers={}),
    "collector: gone": lambda state: state.pop("collector"),
    "collector: text": named("collector", generator="x"),
    "torch: gone": lambda state: state.pop("torch"),
    "torch: too many": named_value("torch", [torch.get_rng_state()] * 1_000),
    "torch: numbers": named_value("torch", [1]),
    "policy: another shape": lambda state: state["policy"].update(
        module={name: np.zeros(3) for name in state["policy"]["module"]}
    ),
    "monitor: gone": lambda state: state.pop("monitor"),
    "monitor: text": lambda state: state.update(monitor="x"),
    "monitor: steps": named("monitor", progress={"env_steps": 1, "seconds": "x"}),
    "monitor: negative": steps(env_steps=-1),
    "monitor: negative episodes": steps(episodes=-1),
    "monitor: another step": steps(env_steps=7),
    "monitor: many steps": steps(env_steps=10**30),
    "monitor: a share of a step": steps(env_steps=128.5),
    "monitor: no time": steps(seconds=float("nan")),
    "monitor: much more": steps(more=1),
    "monitor: confirmed": named("monitor", confirmed_at="x"),
    "monitor: saved": named("monitor", saved_at={}),
    "monitor: returns": named("monitor", returns=["x"]),
    "monitor: logged": named("monitor", logged=[]),
    "monitor: newest": named("monitor", newest={"train/loss": "x"}),
    "evaluator: a list": lambda state: state.update(evaluator=[1]),
    "evaluator: returns": lambda state: state["evaluator"]["newest"].update(returns="x"),
    "evaluator: a path": lambda state: state["evaluator"]["best"].update(step="../../x"),
    "evaluator: a step below 0": lambda state: state["evaluator"]["best"].update(step=-1),
    "evaluator: many steps": lambda state: state["evaluator"]["best"].update(step=10**30),
    "evaluator: weights that are no numbers": lambda state: state["evaluator"]["best"].update(
        weights={k: each * np.nan for k, each in state["evaluator"]["best"]["weights"].items()}
    ),
    "alarms: text": lambda state: state.update(alarms="x"),
    "alarms: a series of text": lambda state: state["alarms"].update(series={"a": "xy"}),
    "alarms: infinite steps": lambda state: state["alarms"].update(
        series={"a": [[float("inf"), 1.0]]}
    ),
    "evaluator: no weights": lambda state: state["evaluator"]["best"].pop("weights"),
    "evaluator: other weights": lambda state: state["evaluator"]["best"].update(
        weights={name: np.zeros(3) for name in state["policy"]["module"]}
    ),
}


@pytest.mark.parametrize("change", STATES)
@pytest.mark.parametrize("exact", [False, True])
def test_a_forged_state_is_refused(change, exact, forged):
    folder = forged(STATES[change])
    before = sorted(path.name for path in (folder / "checkpoints").iterdir())
    said = refused(*resume(folder, *["--exact"] * exact))
    assert "cannot change on resume" in said if "another network" in change else str(folder) in said
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == before


WEIGHTS = {
    "text": lambda state: state.update(weights="x"),
    "other values": lambda state: state.update(weights=dict.fromkeys(state["weights"], "x")),
    "other names": lambda state: state.update(weights={"x": np.zeros(3)}),
    "gone": lambda state: state.pop("weights"),
    "no numbers": lambda state: state.update(
        weights={name: each * np.nan for name, each in state["weights"].items()}
    ),
    "another dtype": lambda state: state.update(
        weights={name: each.double() for name, each in state["weights"].items()}
    ),
    "less": lambda state: state["weights"].popitem(),
    "more": lambda state: state["weights"].update(x=torch.zeros(3)),
}


@pytest.mark.parametrize("change", WEIGHTS)
def test_forged_weights_are_refused(change, forged):
    folder = forged(WEIGHTS[change], "best")
    assert str(folder) in refused("eval", folder, "--episodes", "1")
    assert str(folder) in refused("train", "cartpole_ppo", *BUDGET, f"policy.init_from={folder}")


def test_a_checkpoint_of_a_step_that_no_run_takes_is_refused(forged):
    folder = forged(lambda state: state["monitor"]["progress"].update(env_steps=10**30))
    step = max(checkpoint_steps(folder / "checkpoints"))
    state = load_checkpoint(folder / "checkpoints", step)[0]
    save_checkpoint(folder / "checkpoints", 10**30, state, keep=9, mark="scheduled")
    assert str(folder) in refused(*resume(folder))


SHARDS = {
    "one less": lambda shards: shards.pop(),
    "many": lambda shards: shards.extend(shards * 1_000),
    "gone": lambda shards: shards.clear(),
    "text": lambda shards: shards.__setitem__(0, "x"),
    "no rollouts": lambda shards: shards[0].update(rollouts=-1),
    "many rollouts": lambda shards: shards[1].update(rollouts=10**30),
    "noise": lambda shards: shards[0].update(noise=torch.zeros(8)),
    "layers": lambda shards: shards[0].update(layers="x"),
    "no collector": lambda shards: shards[0].pop("collector"),
}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded") / "run"
    train(folder, "collect.shards=2")
    return folder


@pytest.mark.parametrize("change", [*SHARDS, "no list", "starts"])
def test_a_forged_state_of_shards_is_refused(change, sharded, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(sharded, folder)
    state, step = load_checkpoint(folder / "checkpoints")
    if change in SHARDS:
        SHARDS[change](state["collector"]["shards"])
    else:
        starts = ["x", "y"] if change == "starts" else []
        state["collector"].update(shards=None if starts else 3, starts=starts)
    save_checkpoint(folder / "checkpoints", step, state, keep=9)
    assert str(folder) in refused(*resume(folder))


def test_a_number_of_shards_that_no_machine_has_is_refused():
    for option in ("collect.shards=1_000_000", "env.n_envs=1_000_000_000", "eval.n_envs=100_000"):
        said = refused("train", "cartpole_ppo", option, "eval.episodes=1_000_000")
        assert option.partition("=")[0] in said


@pytest.mark.parametrize(
    "state",
    [
        {"lost_steps": -1},
        {"lost_steps": "x"},
        {"accepted": {"0.0": "x"}},
        {"accepted": {"0.0": 10**30}},
        {"accepted": ["x"]},
        {"starts": ["x"]},
        {"starts": [-1]},
        {"dropped_steps": "x"},
    ],
)
def test_a_forged_journal_of_rollouts_is_refused(state):
    pytest.importorskip("ray")
    from guerdon.parallel.collectors import AsyncShards

    with pytest.raises(DAMAGE, match=r"is|has"):
        AsyncShards([], 1.0, None).load_training_state({"shards": [], **state})


# --- rewards and classifiers


def nested(state, change):
    """Change all tensors of floats of a state."""
    if isinstance(state, dict):
        return {key: nested(each, change) for key, each in state.items()}
    floats = isinstance(state, torch.Tensor) and state.is_floating_point() and state.numel()
    return change(state) if floats else state


TENSORS = {
    "no numbers": lambda each: each * np.nan,
    "another dtype": lambda each: each.double(),
    "another shape": lambda each: each.reshape(-1)[:0],
    "text": lambda each: str(each),
}


@pytest.mark.parametrize("change", TENSORS)
def test_the_forged_state_of_a_reward_is_refused(change, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(test_saved.VERSIONS[-1] / "run", folder)
    state, step = load_checkpoint(folder / "reward")
    state["state"] = nested(state["state"], TENSORS[change])
    save_checkpoint(folder / "reward", step, state, keep=1)
    with pytest.raises(ValueError, match=r"reward in .* does not fit") as caught:
        load_reward(folder)
    assert sentence_of(caught.value)


@pytest.mark.parametrize("change", TENSORS)
def test_forged_weights_of_a_classifier_are_refused(change, tmp_path):
    make_fit(tmp_path)
    (tmp_path / "fit" / "best").unlink()
    state, step = load_checkpoint(tmp_path / "fit")
    members = state["classifier"]["members"]
    state["classifier"]["members"] = [nested(each, TENSORS[change]) for each in members]
    save_checkpoint(tmp_path / "fit", step, state, keep=1)
    with pytest.raises(ValueError, match="fit is damaged: ") as caught:
        load_classifier(tmp_path / "fit")
    assert sentence_of(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": None}, {"threshold": "x"}, {"threshold": float("nan")}, {"temperature": [1]},
        {"model": None}, {"model": 3}, {"model": {"image_keys": 3}}, {"held_out": None},
        {"held_out": {}}, {"held_out": {"logits": 1, "labels": 2}},
    ],
)  # fmt: skip
def test_forged_metadata_of_a_classifier_is_refused(change, tmp_path):
    make_fit(tmp_path)
    state, step = load_checkpoint(tmp_path / "fit", "best")
    state["classifier"]["meta"].update(change)
    for key in [key for key, value in change.items() if value is None]:
        del state["classifier"]["meta"][key]
    save_checkpoint(tmp_path / "fit", step, state, keep=1, mark="best")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "fit"))) as caught:
        load_classifier(tmp_path / "fit")
    assert sentence_of(caught.value)


# --- sweeps


SWEEP = ("sweep", "cartpole_ppo", *BUDGET, "policy.gamma=0.9,0.99", "seed=0", "--trials", "1")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    pytest.importorskip("optuna")
    folder = tmp_path_factory.mktemp("sweeps") / "sweep"
    result = guerdon(*SWEEP, "--sweep-dir", folder)
    assert result.exit_code == 0, result.output
    return folder


def distribution(*choices):
    """How Optuna writes a distribution."""
    attributes = {"choices": choices}
    return json.dumps({"name": "CategoricalDistribution", "attributes": attributes})


CODE = "0.9 env.id=subprocess:Popen"
DRAWN, ENDED = 2, 3  # lines: the study, a trial, its value, its score
LINES = {
    "other values": (DRAWN, {"distribution": distribution(CODE, "0.99")}),
    "another option": (DRAWN, {"param_name": "env.id"}),
    "no such value": (DRAWN, {"param_value_internal": 7}),
    "no such trial": (DRAWN, {"trial_id": 9}),
    "no such operation": (DRAWN, {"op_code": 99}),
    "a score of text": (ENDED, {"values": ["x"]}),
    "no score": (ENDED, {"values": None}),
    "no such state": (ENDED, {"state": 99}),
    "no time": (ENDED, {"datetime_complete": 3}),
    "the lowest is the best": (0, {"directions": [1]}),
    "two scores": (0, {"directions": []}),
}


@pytest.mark.parametrize("name", [*LINES, "no JSON", "nested"])
def test_a_forged_log_of_a_sweep_is_refused(name, sweep, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    lines = [json.loads(line) for line in (sweep / "optuna.log").read_text().splitlines()]
    number, changed = LINES.get(name, (0, {}))
    lines[number].update(changed)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    text = {"no JSON": "{\n" + text, "nested": "[" * 100_000 + "\n"}.get(name, text)
    (folder / "optuna.log").write_text(text)
    said = refused(*SWEEP, "--sweep-dir", folder)
    assert said.startswith(f"Error: {folder / 'optuna.log'} is damaged: ")


def test_a_trial_whose_values_were_not_all_drawn_is_left_out(sweep, tmp_path):
    """As a kill leaves it."""
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    lines = (sweep / "optuna.log").read_text().splitlines(keepends=True)
    (folder / "optuna.log").write_text("".join([*lines, lines[1]]))
    result = guerdon(*SWEEP, "--sweep-dir", folder)
    assert result.exit_code == 0, result.output
    assert "best trial: 0" in result.output


# --- journals


def preference(pair):
    segment = Batch(obs=np.zeros((3, 2)))
    return Preference(pair, segment, segment, label=1.0, rater="me")


def rewind(entries, folder):
    (folder / "run").mkdir()
    (folder / "run" / "outputs.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in entries))
    journal = Journal()
    journal.open(folder / "run" / "outputs.jsonl", 0)
    journal.close()


@pytest.mark.parametrize("stem", ["mine", "mine.v1", "mine[1]", "*", "?"])
@pytest.mark.parametrize("ending", [".jsonl", ".json", ""])
@pytest.mark.parametrize("forged", ["", ".jsonl", ".x", ".x.y"])
def test_a_journal_cannot_name_the_segments_of_another_file(stem, ending, forged, tmp_path):
    """Files of one stem share a folder of segments, which are removed if a file has no line."""
    mine, other = tmp_path / f"{stem}{ending}", tmp_path / f"{stem}{forged}"
    save_preferences(mine, [preference("000000")])
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    rewind([{"path": str(other), "sha256": "0" * 64, "pair": "000000"}], tmp_path)
    assert before <= {*tmp_path.rglob("*")}
    assert [each.pair for each in load_preferences(mine)] == ["000000"]


def test_a_journal_cannot_name_segments_through_a_link(tmp_path):
    save_preferences(tmp_path / "mine.jsonl", [preference("000000")])
    (tmp_path / "other_segments").symlink_to("mine_segments")
    other = {"path": str(tmp_path / "other.jsonl"), "sha256": "0" * 64, "pair": "000000"}
    rewind([other], tmp_path)
    assert len(load_preferences(tmp_path / "mine.jsonl")) == 1


@pytest.mark.parametrize("name", ["000000.npz", "000000.txt", "thesis.npz"])
def test_a_journal_removes_only_trajectories_with_the_content_that_it_lists(name, tmp_path):
    file = tmp_path / name
    file.write_text("my thesis")
    digest = "0" * 64 if name == "000000.npz" else hashlib.sha256(b"my thesis").hexdigest()
    rewind([{"path": str(file), "sha256": digest}], tmp_path)
    assert file.read_text() == "my thesis"


def test_a_journal_removes_no_links(tmp_path):
    file = tmp_path / "000000.npz"
    (tmp_path / "000001.npz").write_text("my thesis")
    file.symlink_to("000001.npz")
    digest = hashlib.sha256(b"my thesis").hexdigest()
    rewind([{"path": str(file), "sha256": digest}], tmp_path)
    assert file.is_symlink()
