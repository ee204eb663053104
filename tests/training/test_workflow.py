"""The three stages in one call are what three commands do."""

import json
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest
import yaml

from guerdon.config import ConfigError
from guerdon.data.frames import load_frames
from guerdon.training import workflow as workflow_module
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.fit import fit
from guerdon.training.fit_files import compose_fit, load_classifier
from guerdon.training.run import train
from guerdon.training.workflow import RESULT, Workflow, run_workflow
from tests.training.running import leaves, same
from tests.training.staging import BOTH, COLLECT, FIT, LEARN, TINY


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder, the result, and what was told."""
    folder, told = tmp_path_factory.mktemp("ran") / "stages", []
    result = run_workflow(folder, TINY, seed=3, display="none", tell=told.append)
    return folder, result, told


def test_it_leaves_a_folder_for_each_stage_and_the_result(ran):
    folder, result, told = ran
    assert {path.name for path in folder.iterdir()} == {
        "collect", "data", "classifier", "learn", RESULT,
    }  # fmt: skip
    assert json.loads((folder / RESULT).read_text()) == asdict(result)
    assert list(result.seconds) == ["collect", "fit", "learn"]
    assert all(seconds > 0 for seconds in result.seconds.values())
    assert [sentence[:6] for sentence in told] == ["1 of 3", "2 of 3", "3 of 3"]
    assert result.seed == result.collect["seed"] == result.learn["seed"] == 3


def test_the_first_stage_keeps_pictures(ran):
    folder, result, _ = ran
    frames = load_frames(folder / "data/positive", folder / "data/negative", ["base_camera"])
    kept = result.trajectories
    assert kept == {
        kind: len(list((folder / "data" / kind).iterdir())) for kind in ("positive", "negative")
    }
    assert len(frames.from_positive) == sum(kept.values()) == 1_600 / 50
    assert frames.images["base_camera"].shape == (1_600, 3, 64, 64)


def test_the_second_stage_learns_from_them(ran):
    folder, result, _ = ran
    _, meta = load_classifier(folder / "classifier")
    assert meta["data"]["positive_dir"] == str((folder / "data/positive").resolve())
    assert meta["data"]["trajectories"] == sum(result.trajectories.values())
    assert meta["test"] == result.fit
    assert meta["model"]["width"] == 4
    assert meta["seed"] == 3


def test_the_third_stage_learns_from_the_classifier_alone(ran):
    folder, result, _ = ran
    reward = yaml.safe_load((folder / "learn/config.yaml").read_text())["reward"]
    assert list(reward["terms"]) == ["classifier"]
    assert reward["checkpoint_path"] == str(folder / "classifier")
    assert not reward["collect_data"]
    assert result.learn["env_steps"] == 800
    assert "eval_model_success_rate" in result.learn
    assert "eval_model_success_rate" not in result.collect


def test_each_stage_is_what_its_command_does(ran, tmp_path):
    folder, result, _ = ran
    folders = {kind: tmp_path / "data" / kind for kind in ("positive", "negative")}
    train(
        "reach_ppo", "reward.collect_data=true",
        *(f"reward.data_collection.{kind}_dir={path}" for kind, path in folders.items()),
        *BOTH, *COLLECT, f"run.dir={tmp_path / 'collect'}", seed=3, display="none",
    )  # fmt: skip
    config = compose_fit(
        "reach_classifier",
        [*(f"reward.data.{kind}_dir={path}" for kind, path in folders.items()),
         f"reward.save_dir={tmp_path / 'classifier'}", "seed=3", *FIT],
    )  # fmt: skip
    assert fit(config, display="none")["test"] == result.fit
    train(
        "reach_ppo", "reward=classifier", f"reward.checkpoint_path={tmp_path / 'classifier'}",
        *BOTH, *LEARN, f"run.dir={tmp_path / 'learn'}", seed=3, display="none",
    )  # fmt: skip
    for stage in ("collect", "learn"):
        policies = [
            leaves(load_checkpoint(root / stage / "checkpoints")[0]["policy"])
            for root in (folder, tmp_path)
        ]
        assert all(same(policies[0][key], policies[1][key]) for key in policies[0]), stage


def test_a_classifier_that_is_not_good_enough_stops_it_before_the_third_stage(tmp_path):
    with pytest.raises(ValueError, match=r"the classifier has a precision of .* collect more "):
        run_workflow(tmp_path, replace(TINY, learn=("run.max_steps=800",)), display="none")
    assert checkpoint_steps(tmp_path / "classifier")
    assert not (tmp_path / "learn").exists()
    assert not (tmp_path / RESULT).exists()


@pytest.mark.parametrize(("stage", "function"), [(0, "train"), (1, "fit"), (2, "train")])
def test_who_stops_a_stage_stops_all_of_it(stage, function, tmp_path, monkeypatch):
    def stopped(*arguments, **options):
        if stage == len(told) - 1:
            monkeypatch.setattr("guerdon.training.monitor.Monitor.stop_reason", asked)
            monkeypatch.setattr("guerdon.training.fit.interrupts", always)
        return real(*arguments, **options)

    def asked(_):
        return "interrupted"

    @contextmanager
    def always(_):
        yield lambda: True

    told = []
    real = getattr(workflow_module, function)
    monkeypatch.setattr(workflow_module, function, stopped)
    longer = replace(TINY, fit=(*TINY.fit, "reward.num_epochs=3"))  # one step cannot be stopped
    with pytest.raises(KeyboardInterrupt):
        run_workflow(tmp_path / "out", longer, display="none", tell=told.append)
    assert len(told) == stage + 1
    assert not (tmp_path / "out" / RESULT).exists()


def test_an_option_that_is_none_is_said_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'env\.n_env'"):
        run_workflow(tmp_path / "new", replace(TINY, both=("env.n_env=3",)), display="none")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_loophole_is_found_and_refitting_closes_it(tmp_path):
    workflow = Workflow(
        collect=("run.max_steps=30_000",),
        fit=("reward.num_epochs=4",),
        learn=("run.max_steps=2_048",),
    )
    run_workflow(tmp_path, workflow, display="none")
    reward = ("reward=classifier", f"reward.checkpoint_path={tmp_path / 'classifier'}")
    options = ("eval.episodes=50", "run.max_steps=30_000")
    found = {}
    for name, more in (("hacked", ()), ("refitted", ("reward.cotrain=true",))):
        folder = tmp_path / name
        found[name] = train(
            "reach_loophole_ppo", *reward, *options, *more, f"run.dir={folder}", display="none"
        )
        cheats = "the policy cheats its reward" in (folder / "log.txt").read_text()
        assert cheats or name == "refitted"  # which may be quick enough
    hacked, refitted = found["hacked"], found["refitted"]
    assert hacked["eval_model_success_rate"] >= 0.8
    assert hacked["eval_success_at_prediction"] <= 0.2
    wrong = refitted["eval_model_success_rate"] - refitted["eval_success_at_prediction"]
    assert wrong <= 0.1
