"""Environments, rewards, networks and policies of a file, which the run finds again."""

import pytest

import guerdon
from guerdon.config import sources

FILE = """
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from guerdon.policy import DQN


class Env(CartPoleEnv):
    pass


def rule(batch):
    return batch.obs[..., 2]


class Net(torch.nn.Module):
    def __init__(self, size, actions):
        super().__init__()
        self.layer = torch.nn.Linear(size, actions)

    def forward(self, inputs):
        return self.layer(inputs)


class Mine(DQN):
    pass
"""
SHORT = (
    "env.n_envs=2", "env.max_episode_steps=20", "collect.n_step=4", "collect.warmup_steps=8",
    "collect.buffer_size=100", "learn.batch_size=4", "run.max_steps=16", "eval.episodes=1",
)  # fmt: skip


@pytest.mark.parametrize("backend", ["base", "subprocess"])
def test_what_a_file_defines_is_trained_and_found_again(backend, tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"mine_{backend}.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    named = f"code/mine_{backend}.py"
    guerdon.train(
        None,
        f"env.id={named}:Env", f"policy={named}:Mine", f"policy.model.type={named}:Net",
        "reward=function", f"reward.target={named}:rule",
        f"env.backend={backend}", "run.dir=run", *SHORT, display="none",
    )  # fmt: skip
    config = sources.read(tmp_path / "run")
    path = tmp_path / named
    assert config["env"]["id"] == f"{path}:Env"
    assert config["policy"]["type"] == f"{path}:Mine"
    assert config["policy"]["model"]["type"] == f"{path}:Net"
    assert config["reward"]["terms"]["function"]["target"] == f"{path}:rule"
    assert config["run"]["name"] == "Env_Mine_function"
    monkeypatch.chdir("/")
    assert guerdon.evaluate_run(tmp_path / "run", episodes=1)["episodes"] == 1
