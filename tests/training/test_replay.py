"""The trained policy of a run: loaded, and played."""

import shutil

import numpy as np
import pytest
import torch

from guerdon.data import Batch
from guerdon.envs import Counting
from guerdon.policy import POLICIES, PPO
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from guerdon.training.replay import evaluate_run, load_policy
from guerdon.training.run import train
from tests.cli.tiny import BUDGET, damage
from tests.training.running import config_of


@pytest.fixture(scope="module", params=["cartpole_ppo", "cartpole_dqn"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / request.param
    train(request.param, *BUDGET, "collect.warmup_steps=0", f"run.dir={folder}", display="none")
    return folder


def weights(policy):
    return {name: value.clone() for name, value in policy.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_the_policy_has_the_weights_of_the_checkpoint(run):
    first, *_, last = checkpoint_steps(run / "checkpoints")
    for which in (first, last, "latest"):
        saved, _ = load_checkpoint(run / "checkpoints", which)
        assert same(weights(load_policy(run, which)), saved["policy"]["module"])
    best, _ = load_checkpoint(run / "best")
    assert same(weights(load_policy(run)), best["weights"])
    assert not same(weights(load_policy(run, first)), weights(load_policy(run, last)))


def test_the_policy_acts_without_exploration(run):
    policy = load_policy(run)
    assert not policy.training
    obs = np.linspace(-1, 1, 40, dtype=np.float32).reshape(10, 4)
    with torch.inference_mode():
        actions = [policy(Batch(obs=obs)).act for _ in range(2)]
    assert actions[0].tolist() == actions[1].tolist()
    assert set(actions[0].tolist()) <= {0, 1}


def test_an_evaluation_is_the_same_every_time(run):
    first = evaluate_run(run, episodes=4, seed=1)
    assert evaluate_run(run, episodes=4, seed=1) == first
    assert first["episodes"] == len(first["returns"]) == 4
    assert first["return_min"] <= first["return_mean"] <= first["return_max"]
    assert first["return_std"] == pytest.approx(np.std(first["returns"]))


def test_the_run_is_left_as_it_was(run):
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    evaluate_run(run, episodes=1)
    assert files == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_damaged_checkpoint_is_passed_over(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    *_, before, last = checkpoint_steps(folder / "checkpoints")
    damage(folder, last)
    with pytest.warns(UserWarning, match="the checkpoint before it is used"):
        policy = load_policy(folder, "latest")
    assert same(weights(policy), weights(load_policy(run, before)))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run directory: it has no config"):
        load_policy(tmp_path)


def test_a_run_without_a_best_checkpoint_says_so(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(folder / "best")
    with pytest.raises(FileNotFoundError, match="has no best policy, since it was not evaluated"):
        load_policy(folder)
    assert load_policy(folder, "latest")


def test_weights_of_another_network_are_refused(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    config = folder / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("    hidden:\n", "    hidden:\n    - 17\n"))
    assert config.read_text() != text
    with pytest.raises(ValueError, match=r"is not the (ppo|dqn) that its config.yaml describes"):
        load_policy(folder)


def test_a_run_of_a_device_that_is_not_here_plays_on_the_cpu(run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = shutil.copytree(run, tmp_path / "run")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("device: cpu", "device: cuda"))
    policy = load_policy(folder)
    assert policy.device == torch.device("cpu")


# --- what `train` was given in Python


class Network(torch.nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)

    def forward(self, obs):
        output = self.linear(obs.float())
        return {"logit": output[..., :4], "value": output[..., 4]}


class Given(PPO):
    """No registered policy."""


def make(length):
    return Counting(lengths=[length])


def test_what_a_run_was_given_is_given_again(tmp_path):
    given = {"env_setting": (make, [4, 5], [6, 7]), "model": Network, "policy_fn": Given}
    config = config_of("ppo", tmp_path / "run", run={"max_steps": 64})
    train(config, display="none", **given)
    policy = load_policy(tmp_path / "run", **given)
    assert type(policy) is Given
    assert any(isinstance(module, Network) for module in policy.modules())
    found = evaluate_run(tmp_path / "run", episodes=4, **given)
    assert sorted(found["lengths"]) == [6, 6, 7, 7]
    assert evaluate_run(tmp_path / "run", episodes=1, **given)["lengths"] == [6]
    with pytest.raises(ValueError, match="cannot be filmed: leave out 'video'"):
        evaluate_run(tmp_path / "run", video=True, **given)
    without = given | {"model": None}
    with pytest.raises(ValueError, match="a model or policy_fn that `train` was given has to be"):
        load_policy(tmp_path / "run", **without)


def test_a_policy_class_that_only_python_knows_is_known_by_its_name_in_the_run(tmp_path):
    train(config_of("ppo", tmp_path / "run", run={"max_steps": 64}), display="none")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("type: ppo", "type: only_python"))
    state, step = load_checkpoint(tmp_path / "run" / "checkpoints")
    state["config"]["policy"]["type"] = "only_python"
    save_checkpoint(tmp_path / "run" / "checkpoints", step, state, keep=3)
    with pytest.raises(ValueError, match="unknown policy 'only_python'"):
        load_policy(tmp_path / "run")
    assert type(load_policy(tmp_path / "run", policy_fn=Given)) is Given
    summary = train(
        None, "run.max_steps=96", resume=tmp_path / "run", policy_fn=Given, display="none"
    )
    assert summary["env_steps"] >= 96
    assert POLICIES.get("only_python") is Given
