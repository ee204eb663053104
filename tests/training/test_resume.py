"""A run that stops and goes on ends exactly like one that never stopped."""

import contextlib
import json
import shutil

import pytest
import torch

from guerdon.training import evaluation as evaluation_module
from guerdon.training import run as run_module
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from guerdon.training.run import train
from guerdon.training.run_folder import RunFolder
from tests.training.running import (
    CASES,
    HALF,
    assert_same_run,
    config_of,
    differences,
    metrics_of,
    resume,
    run,
    same,
    state_of,
)
from tests.training.test_noise_law import (
    REWARDS,
    files,  # noqa: F401 - a fixture
    fill_paths,
    make_config,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs of all cases that never stopped, made when they are asked for."""
    root = tmp_path_factory.mktemp("whole")

    def get(case, name="plain", **sections):
        directory = root / f"{case}-{name}"
        if not directory.exists():
            run(case, directory, **sections)
        return directory

    return get


# --- half and half


@pytest.mark.parametrize("case", CASES)
def test_half_a_run_and_the_other_half_are_a_whole_run(case, whole, tmp_path):
    first = run(case, tmp_path / "run", run={"max_steps": HALF})
    counted = "updates" if case == "bc" else "env_steps"
    assert HALF <= first[counted] < HALF + 9
    second = resume(tmp_path / "run", "run.max_steps=256")
    assert second[counted] >= 2 * HALF
    assert second["updates"] > first["updates"]
    assert_same_run(whole(case), tmp_path / "run")


def test_a_run_may_be_resumed_again_and_again(whole, tmp_path):
    run("sac", tmp_path / "run", run={"max_steps": 64})
    for steps in (128, 192, 256):
        resume(tmp_path / "run", f"run.max_steps={steps}")
    assert_same_run(whole("sac"), tmp_path / "run")


def test_an_end_between_two_evaluations_changes_no_training(whole, tmp_path):
    run("sac", tmp_path / "run", run={"max_steps": 96})
    resume(tmp_path / "run", "run.max_steps=256")
    *_, last = checkpoint_steps(tmp_path / "run" / "checkpoints")
    found = differences(whole("sac"), tmp_path / "run", last)
    assert all(path.startswith(("/monitor", "/evaluator")) for path in found)


def test_a_checkpoint_holds_everything_that_training_changes(whole):
    state = state_of(whole("dqn_prioritized_3_step"), 261)
    for part in (
        "/policy/module/",
        "/policy/optimizers/",
        "/policy/generator",
        "/policy/updates",
        "/buffer/",
        "/collector/generator/",
        "/monitor/progress/env_steps",
    ):
        assert any(path.startswith(part) for path in state), part
    assert any("priorities" in path for path in state)
    *_, last = checkpoint_steps(whole("ppo_normalized") / "checkpoints")
    normalized = state_of(whole("ppo_normalized"), last)
    assert any(path.startswith("/reward/scaler/") for path in normalized)
    assert any("normalizer" in path for path in normalized)
    assert not any(path.startswith("/buffer") for path in normalized)


def test_resuming_a_run_that_is_finished_changes_nothing(whole, tmp_path):
    shutil.copytree(whole("ppo"), tmp_path / "run")
    summary = resume(tmp_path / "run")
    assert summary["stop_reason"] == "max_steps"
    assert_same_run(whole("ppo"), tmp_path / "run")


def test_a_run_that_was_good_enough_is_so_when_it_is_resumed(tmp_path):
    goal = {"eval": {"target_return": -1e9}}
    run("sac", tmp_path / "one", **goal)
    shutil.copytree(tmp_path / "one", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()  # as if killed just before it was written
    assert resume(tmp_path / "run")["stop_reason"] == "target_return"
    assert_same_run(tmp_path / "one", tmp_path / "run")


@pytest.mark.parametrize("case", ["ppo", "sac"])
@pytest.mark.parametrize("nth", [1, 3, 4, 5])
def test_it_does_not_matter_which_save_is_the_one_that_fails(case, nth, tmp_path, monkeypatch):
    """Like a kill between a line of metrics and its checkpoint, at each of them in turn."""
    late = {"eval": {"every": 10_000}, "run": {"max_steps": 130, "checkpoint_every": 32}}
    run(case, tmp_path / "one", **late)
    saves = 0

    def save(*args, **options):
        nonlocal saves
        saves += 1
        if saves == nth:
            raise KeyboardInterrupt
        return save_checkpoint(*args, **options)

    for module in (run_module, evaluation_module):
        monkeypatch.setattr(module, "save_checkpoint", save)
    with contextlib.suppress(KeyboardInterrupt):
        run(case, tmp_path / "run", **late)
    monkeypatch.undo()
    if saves == nth:
        resume(tmp_path / "run")
    assert_same_run(tmp_path / "one", tmp_path / "run")


class Drawing(torch.nn.Module):
    """Draws from PyTorch's global generator, also in evaluations."""

    def __init__(self, *_):
        super().__init__()
        self.linear = torch.nn.Linear(4, 5)

    def forward(self, obs):
        output = torch.nn.functional.dropout(self.linear(obs.float()), 0.5)
        return {"logit": output[..., :4], "value": output[..., 4]}


def test_layers_that_draw_random_numbers_resume_exactly_and_evaluations_draw_others(tmp_path):
    network = {"policy": {"type": "ppo", "model": {"type": f"{__name__}:Drawing"}}}
    run("ppo", tmp_path / "whole", **network)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run("ppo", tmp_path / "run", **network, run={"max_steps": HALF})
    resume(tmp_path / "run", "run.max_steps=256")
    assert torch.equal(torch.get_rng_state(), before)
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    run("ppo", tmp_path / "rare", **network, eval={"every": 10_000})
    (*_, last) = checkpoint_steps(tmp_path / "rare" / "checkpoints")
    found = differences(tmp_path / "whole", tmp_path / "rare", last)
    assert all(path.startswith(("/monitor", "/evaluator")) for path in found)


# --- damage


def flip(path, where=0.5):
    """Changes one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("case", ["ppo_normalized", "dqn_prioritized_3_step"])
@pytest.mark.parametrize("name", ["policy.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(case, name, whole, tmp_path):
    run(case, tmp_path / "run", run={"max_steps": HALF})
    checkpoints = tmp_path / "run" / "checkpoints"
    *_, before, newest = checkpoint_steps(checkpoints)
    flip(checkpoints / f"step_{newest}" / name)
    with pytest.warns(UserWarning, match="the checkpoint before it is used"):
        resume(tmp_path / "run", "run.max_steps=256")
    assert f"resumed at step {before}" in (tmp_path / "run" / "log.txt").read_text()
    assert_same_run(whole(case), tmp_path / "run")


def test_a_torn_line_of_metrics_is_dropped(whole, tmp_path):
    run("ppo", tmp_path / "run", run={"max_steps": HALF})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 132, "time": 1.0, "train/lo')
    resume(tmp_path / "run", "run.max_steps=256")
    assert_same_run(whole("ppo"), tmp_path / "run")


def test_lines_after_the_checkpoint_are_written_anew(whole, tmp_path):
    run("ppo", tmp_path / "run", run={"max_steps": HALF})
    newest = checkpoint_steps(tmp_path / "run" / "checkpoints")[-1]
    shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step_{newest}")
    with pytest.warns(UserWarning, match="is not there; the one before it is used"):
        resume(tmp_path / "run", "run.max_steps=256")
    steps = [line["step"] for line in metrics_of(tmp_path / "run")]
    assert steps == sorted(steps)
    assert_same_run(whole("ppo"), tmp_path / "run")


@pytest.mark.parametrize("exact", [False, True])
def test_a_run_whose_checkpoints_are_gone_is_not_started_again(exact, tmp_path):
    run("ppo", tmp_path / "run", run={"max_steps": HALF})
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    name = "scheduled" if exact else "latest"
    with pytest.raises(FileNotFoundError, match=rf"has had a {name} checkpoint, .* has no {name}"):
        resume(tmp_path / "run", "run.max_steps=256", exact=exact)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


EVIDENCE = ("metrics.jsonl", "summary.json", "outputs.jsonl", "best", "reward")


@pytest.mark.filterwarnings("ignore:.* is damaged and is ignored")
@pytest.mark.parametrize("damage", ["{}", '{"saved": 3}', "[", None])
@pytest.mark.parametrize("kept", [*EVIDENCE, "checkpoints/latest"])
def test_without_a_record_all_that_a_run_left_tells_that_it_trained(kept, damage, tmp_path):
    folder = RunFolder.create(tmp_path / "run", json.dumps(config_of("ppo", tmp_path / "run")))
    folder.close()
    path = folder.path / kept
    path = path / "step_9" if kept in ("best", "reward") else path
    path.parent.mkdir(exist_ok=True)
    path.write_text("step_9")
    folder.info.write_text(damage) if damage else folder.info.unlink()
    with pytest.raises(FileNotFoundError, match=r"run has trained, but .* has no latest check"):
        resume(folder.path)
    assert path.read_text() == "step_9"


def test_a_run_that_only_began_needs_no_record(tmp_path):
    folder = RunFolder.create(tmp_path / "run", json.dumps(config_of("ppo", tmp_path / "run")))
    folder.close()
    folder.info.unlink()
    assert resume(folder.path)["env_steps"] > 0


def test_without_the_scheduled_checkpoint_the_latest_is_named(tmp_path):
    run("ppo", tmp_path / "run", run={"max_steps": 64})
    (tmp_path / "run" / "checkpoints" / "scheduled").unlink()
    with pytest.raises(FileNotFoundError, match="restore it, or resume without --exact, or start"):
        resume(tmp_path / "run", exact=True)
    assert resume(tmp_path / "run", "run.max_steps=96")["env_steps"] >= 96


@pytest.mark.parametrize("exact", [False, True])
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
    exact, whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_module, "save_checkpoint", lambda *_, **__: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            resume(tmp_path / "run") if (tmp_path / "run").exists() else run(
                "ppo", tmp_path / "run"
            )
    monkeypatch.undo()
    assert metrics_of(tmp_path / "run")
    resume(tmp_path / "run", exact=exact)
    assert_same_run(whole("ppo"), tmp_path / "run")


def test_a_run_that_started_again_exactly_can_be_killed_again(tmp_path, monkeypatch):
    late = {"run": {"checkpoint_every": 10_000}}
    run("ppo", tmp_path / "run", run=late["run"] | {"max_steps": 64})  # at its end, off schedule
    monkeypatch.setattr(run_module, "run_trainer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        resume(tmp_path / "run", "run.max_steps=256", exact=True)
    monkeypatch.undo()
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == []
    resume(tmp_path / "run")
    run("ppo", tmp_path / "other", **late)
    (last,) = checkpoint_steps(tmp_path / "other" / "checkpoints")
    assert differences(tmp_path / "other", tmp_path / "run", last) == []


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run directory: it has no config\.yaml"):
        resume(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_run_is_resumed_with_its_own_config(tmp_path):
    run("ppo", tmp_path / "run", run={"max_steps": 32})
    with pytest.raises(ValueError, match="its own config"):
        train("cartpole_ppo", resume=tmp_path / "run")


# --- interrupted, and exactly


def test_exact_without_a_scheduled_checkpoint_starts_again(tmp_path):
    with pytest.raises(ValueError, match="'exact' says how a run is resumed"):
        train("cartpole_ppo", exact=True)
    config = config_of("ppo", tmp_path / "run", run={"checkpoint_every": 10_000})
    train(config | {"run": config["run"] | {"max_steps": 40}}, seed=3, display="none")
    resume(tmp_path / "run", "run.max_steps=256", exact=True)
    (*_, last) = checkpoint_steps(tmp_path / "run" / "checkpoints")
    other = config_of("ppo", tmp_path / "other", run={"checkpoint_every": 10_000})
    train(other, seed=3, display="none")
    assert differences(tmp_path / "run", tmp_path / "other", last) == []


def test_exact_uses_no_other_checkpoint(tmp_path):
    run("ppo", tmp_path / "run", run={"max_steps": 64})
    (tmp_path / "run" / "checkpoints" / "scheduled").write_text("step_33")
    with pytest.raises(
        ValueError, match=r"scheduled is damaged; .* --resume without --exact continues"
    ):
        resume(tmp_path / "run", exact=True)
    assert resume(tmp_path / "run", "run.max_steps=99")["stop_reason"] == "max_steps"


def test_exact_drops_later_checkpoints_before_it_continues(tmp_path, monkeypatch):
    pace = {"checkpoint_every": 64, "keep": 9}
    run("ppo", tmp_path / "run", run=pace | {"max_steps": 99})
    root = tmp_path / "run" / "checkpoints"
    (*_, scheduled, last) = checkpoint_steps(root)
    monkeypatch.setattr(run_module, "run_trainer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        resume(tmp_path / "run", "run.max_steps=256", exact=True)
    monkeypatch.undo()
    assert checkpoint_steps(root)[-1] == scheduled < last
    resume(tmp_path / "run")
    run("ppo", tmp_path / "whole", run=pace)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("every", [64, 10_000])  # the latter: the run starts again
def test_the_saved_reward_is_that_of_the_checkpoint_a_run_resumes_from(
    every,
    files,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    section = fill_paths(REWARDS["gail"], files("ppo", "gail"))
    config = make_config("ppo", section, tmp_path / "run")
    config["run"] |= {"checkpoint_every": every, "max_steps": 96}
    train(config, seed=3, display="none")
    assert checkpoint_steps(tmp_path / "run" / "reward") == [96]
    monkeypatch.setattr(run_module, "run_trainer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        resume(tmp_path / "run", exact=True)
    assert checkpoint_steps(tmp_path / "run" / "reward") == ([64] if every == 64 else [])
    if every == 64:
        saved = load_checkpoint(tmp_path / "run" / "reward")[0]["state"]
        used = load_checkpoint(tmp_path / "run" / "checkpoints")[0]["reward"]
        assert same(saved["terms"]["gail"]["trained"], used["terms"]["gail"]["trained"])
