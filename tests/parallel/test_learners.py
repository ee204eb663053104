"""The loop in a worker of its own, which is killed."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from guerdon.config import compose
from guerdon.config.errors import ConfigError
from guerdon.parallel import learner
from guerdon.policy.ppo import PPO
from guerdon.training.callback import Callback
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.display import Display
from guerdon.training.run import train
from tests.parallel.test_asynchronous import logged, rollouts
from tests.parallel.test_faults import wait_for
from tests.parallel.test_synchronous import assert_same_learning, run_serial
from tests.training.running import CASES, config_of

RAY = {"type": "ray", "num_collectors": 2, "num_learners": 1}
STOP = 96  # steps after which the learner is killed, 32 after a checkpoint


def config(case, folder, **runtime):
    made = config_of(case, folder, env={**CASES[case]["env"], "n_envs": 4}, runtime=RAY | runtime)
    made["run"]["checkpoint_every"] = 64
    return made


class Waits(Callback):
    """Waits to be killed, the first time."""

    def __init__(self, marker):
        self.marker = marker

    def on_iteration(self, run):
        if run.progress.env_steps >= STOP and not self.marker.exists():
            self.marker.touch()
            time.sleep(3600)


class Kills(Display):
    """Kills the learner when it is shown that it waits."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.killed, self.states = folder, False, set()

    def watch(self, rows):
        self.rows = rows

    def progress(self, step):
        self.states.add(self.rows()[0][1])
        if step >= STOP and not self.killed:
            self.killed = True
            wait_for((self.folder.parent / "marker").exists)
            text = (self.folder / "log" / "learner" / "learner.txt").read_text()
            os.kill(int(re.search(r"running in process (\d+)", text)[1]), signal.SIGKILL)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("case", "mode"),
    [("ppo_normalized", "sync"), ("dqn_prioritized_3_step", "sync"), ("impala", "async")],
)
def test_a_learner_that_is_killed_continues_from_its_checkpoint(case, mode, tmp_path, monkeypatch):
    folder, shown = tmp_path / "ray", Kills(tmp_path / "ray")
    monkeypatch.setattr(learner, "display_of", lambda *_: shown)
    made = config(case, folder, mode=mode)
    result = train(made, seed=3, callback=Waits(tmp_path / "marker"))
    (name, _, restarts, _), *others = shown.rows()
    assert (name, restarts) == ("learner 0", 1)
    assert shown.states == {"learning", "restarting"}
    assert [name for name, *_ in others] == ["collector 0", "collector 1"]
    assert all(version > 0 for *_, version in others)
    state, step = load_checkpoint(folder / "checkpoints")
    assert result["env_steps"] == step >= 256
    lost = state["collector"]["steps_lost"]
    assert lost == STOP - 64 if mode == "sync" else lost > 0
    assert logged(folder, "runtime/steps_lost")[-1] == lost
    text = (folder / "log.txt").read_text()
    assert f"the learner was restarted (its process died), and {lost} steps are lost" in text
    for name, value in result.policy.state_dict().items():
        assert value.equal(state["policy"]["module"][name])
    if mode == "async":  # no rollout twice, with new random numbers
        names = [name for name, _, _ in rollouts(folder)]
        assert len({*names}) == len(names)
        return
    run_serial(case, tmp_path / "serial", run={**made["run"], "dir": str(tmp_path / "serial")})
    assert_same_learning(tmp_path / "serial", folder)


@pytest.mark.usefixtures("ray")
def test_an_offline_policy(tmp_path):
    made = config_of("bc", tmp_path / "run", runtime=RAY | {"num_collectors": 1})
    result = train(made, display="none")
    assert result["updates"] >= 256
    assert type(result.policy).__name__ == "BC"


class Dies(Callback):
    """Ends the process whenever the run starts."""

    def on_start(self, run):  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("ray")
def test_a_learner_that_always_dies_stops_the_run(tmp_path):
    with pytest.raises(RuntimeError) as caught:
        train(config("ppo", tmp_path / "run", max_restarts=1), display="none", callback=Dies())
    assert str(caught.value) == (
        "learner 0 failed, and 'runtime.max_restarts' is 1; first failure: learner 0: its process "
        "died"
    )


class Raises(Callback):
    def on_iteration(self, run):
        if run.progress.env_steps >= STOP:
            raise ZeroDivisionError("the callback fails")


@pytest.mark.usefixtures("ray")
def test_an_error_of_the_run_is_that_of_the_learner(tmp_path):
    """It is not repeated: the run would fail again."""
    with pytest.raises(ZeroDivisionError, match="the callback fails") as caught:
        train(config("ppo", tmp_path / "run"), display="none", callback=Raises())
    assert f'File "{Path(__file__)}"' in str(caught.value.__cause__)
    assert "restarted" not in (tmp_path / "run" / "log.txt").read_text()


class KillsOther(Callback):
    """Kills another learner, the first time."""

    def __init__(self, marker):
        self.marker = marker

    def on_iteration(self, run):
        if run.progress.env_steps >= STOP and not self.marker.exists():
            self.marker.touch()
            text = (run.path / "log" / "learner" / "1.txt").read_text()
            os.kill(int(re.search(r"running in process (\d+)", text)[1]), signal.SIGKILL)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("case", ["ppo_normalized", "dqn_prioritized_3_step"])
def test_two_learners_have_the_same_parameters_also_after_a_failure(case, tmp_path):
    folder = tmp_path / "run"
    made = config(case, folder, num_learners=2)
    result = train(made, seed=3, display="none", callback=KillsOther(tmp_path / "marker"))
    assert result["env_steps"] == checkpoint_steps(folder / "checkpoints")[-1] >= 256
    assert logged(folder, "runtime/steps_lost")[-1] == STOP - 64
    text = (folder / "log.txt").read_text()
    assert "restarted (RankError: learner 1: its process died), and 32 steps are lost" in text
    text = (folder / "log" / "learner" / "learner.txt").read_text()
    assert text.count("2 learners have the same parameters") >= 4
    # Nearly the same as with one: the order of sums differs.
    alone = train(config(case, tmp_path / "alone", num_learners=0), seed=3, display="none")
    for name, value in alone.policy.state_dict().items():
        assert value.numpy() == pytest.approx(result.policy.state_dict()[name].numpy(), abs=1e-3)


def test_policies_whose_loss_is_not_divided_are_refused():
    with pytest.raises(ConfigError, match=r"'runtime.num_learners' is 2, but the loss of sac"):
        compose("pendulum_sac", ("runtime=ray", "runtime.num_learners=2"))


class Fragile(PPO):
    """Fails once in the second process."""

    def loss(self, rows):
        marker = Path(os.environ["XDG_STATE_HOME"]) / "failed"
        if self.ranks.rank == 1 and self.updates >= 2 and not marker.exists():
            marker.touch()
            raise ZeroDivisionError("the second one fails")
        return super().loss(rows)


@pytest.mark.usefixtures("ray")
def test_an_error_of_another_learner_is_shown(tmp_path):
    folder = tmp_path / "run"
    made = config("ppo", folder, num_learners=2)
    result = train(made, display="none", policy_fn=Fragile)
    assert result["env_steps"] >= 256
    text = (folder / "log.txt").read_text()
    reason = "RankError: learner 1: ZeroDivisionError: the second one fails"
    assert f"the learner was restarted ({reason})" in text
    text = (folder / "log" / "learner" / "1.txt").read_text()
    assert f'File "{Path(__file__)}"' in text
