"""Workers that annotate, score and train the reward, and images of collectors in processes."""

import os
import re
import shutil
import signal
import time

import pytest

from guerdon.config.errors import ConfigError
from guerdon.parallel.rewards import _CALLS
from guerdon.reward import register_reward_model
from guerdon.reward.rnd import RND
from guerdon.training.callback import Callback
from guerdon.training.run import train
from tests.parallel.test_asynchronous import logged
from tests.parallel.test_synchronous import RAY, assert_same_learning, run_on_ray, run_serial
from tests.training.running import CASES, config_of, metrics_of
from tests.training.test_noise_law import (
    CLASSIFIER,
    files,  # noqa: F401 - a fixture
    make_config,
)

GAIL = {"terms": {"gail": {"expert_data_path": "zoo:cartpole"}}}
PWIL = {"terms": {"pwil": {"expert_data_path": "zoo:cartpole"}}}


@pytest.mark.usefixtures("ray")
def test_two_workers_share_the_environments_of_a_rollout(tmp_path):
    """Rewards of episodes do not depend on who annotates them."""
    run_serial("ppo_normalized", tmp_path / "serial", reward=PWIL)
    runtime = {**RAY, "num_reward_workers": 2}
    run_on_ray("ppo_normalized", tmp_path / "ray", runtime=runtime, reward=PWIL)
    assert_same_learning(tmp_path / "serial", tmp_path / "ray")
    assert "2 rewards" in (tmp_path / "ray" / "log.txt").read_text()
    assert "running in process" in (tmp_path / "ray" / "log" / "reward" / "1.txt").read_text()


def with_camera(folder, reward, on_ray, **runtime):
    made = make_config("ppo", reward, folder / "run", camera=True)
    made["env"]["n_envs"], made["eval"] = 4, {"every": 64, "episodes": 2, "n_envs": 2}
    if on_ray:
        return {**made, "runtime": {**RAY, **runtime}}
    return {**made, "collect": {**made["collect"], "shards": 2}}


@pytest.mark.usefixtures("ray")
def test_images_are_collected_and_a_classifier_is_refitted_by_workers(files, tmp_path):  # noqa: F811
    """The images, and what is learned with them, are those of a serial run."""
    paths = files("ppo", "classifier")
    weak = {"min_precision": 0.0, "min_recall": 0.0}
    terms = {"classifier": {"train_every": 32, **weak}}
    folders = {f"{each}_dir": str(tmp_path / each) for each in ("positive", "negative")}
    data = {"collect_data": True, "data_collection": {**folders, "image_keys": ["camera"]}}
    reward = {"terms": terms, "cotrain": True, "checkpoint_path": paths[CLASSIFIER], **data}
    frames = {}
    for kind in ("serial", "ray"):
        made = with_camera(tmp_path / kind, reward, kind == "ray", num_reward_workers=1)
        train(made, display="none")
        found = sorted((*tmp_path.glob("positive/*"), *tmp_path.glob("negative/*")))
        frames[kind] = [(path.parent.name, path.name, path.read_bytes()) for path in found]
        for folder in folders.values():
            shutil.rmtree(folder)
    assert len(frames["serial"]) >= 10
    assert frames["serial"] == frames["ray"]
    assert_same_learning(tmp_path / "serial" / "run", tmp_path / "ray" / "run")


class KillReward(Callback):
    """Kills the first worker of the reward in the third iteration, and stops ten later."""

    iterations = 0

    def on_iteration(self, run):
        self.iterations += 1
        if self.iterations == 3:
            text = (run.path / "log" / "reward" / "0.txt").read_text()
            os.kill(int(re.search(r"running in process (\d+)", text)[1]), signal.SIGKILL)
        elif self.iterations == 13:
            run.stop()


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_worker_that_is_killed_is_restarted_with_the_newest_networks(mode, tmp_path):
    env = {**CASES["ppo_normalized"]["env"], "n_envs": 4}
    runtime = {**RAY, "num_reward_workers": 1, "mode": mode}
    made = config_of("ppo_normalized", tmp_path / "run", env=env, runtime=runtime, reward=GAIL)
    made["run"] |= {"max_steps": 1_000_000, "checkpoint_every": 100_000}
    made["eval"]["every"] = 100_000
    summary = train(made, display="none", callback=KillReward())
    assert summary["stop_reason"] == "callback"
    assert logged(tmp_path / "run", "runtime/restarts")[-1] == 1
    assert logged(tmp_path / "run", "runtime/lost_reward_calls")[-1] > 0
    assert "reward 0: its process died" in (tmp_path / "run" / "log.txt").read_text()
    trained = [line["step"] for line in metrics_of(tmp_path / "run") if "reward/gail/loss" in line]
    assert trained[-1] > trained[0]


class Slow(RND):
    """A reward whose training takes long."""

    def train(self):
        time.sleep(0.3)
        return super().train()


class MostWaiting(Callback):
    """Notes how many calls of the worker that trains are open at most."""

    most = 0

    def on_iteration(self, run):
        self.most = max(self.most, len(run.reward._calls))


@pytest.mark.usefixtures("ray")
def test_the_learner_waits_for_a_slow_worker(tmp_path):
    register_reward_model("slow_rnd", Slow, override=True)
    runtime = {**RAY, "num_reward_workers": 1, "mode": "async"}
    env, reward = {**CASES["ppo"]["env"], "n_envs": 4}, {"terms": {"slow_rnd": {}, "env": {}}}
    made = config_of("ppo", tmp_path / "run", env=env, runtime=runtime, reward=reward)
    made["run"]["checkpoint_every"] = 100_000  # a checkpoint waits for all calls
    waiting = MostWaiting()
    train(made, display="none", callback=waiting)
    assert waiting.most == _CALLS + 1


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"terms": {"env": {}}}, "no effect on the environment reward"),
        (
            {"terms": {"airl": {"expert_data_path": "zoo:cartpole"}}},
            "'airl' needs the policy, which only the learner has",
        ),
    ],
)
def test_rewards_that_workers_cannot_have(reward, message, tmp_path):
    runtime = {**RAY, "num_reward_workers": 1}
    with pytest.raises(ConfigError, match=message):
        run_on_ray("ppo", tmp_path / "run", runtime=runtime, reward=reward)
    assert not (tmp_path / "run").exists()
