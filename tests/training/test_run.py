"""A run from its config to its folder: what it leaves, when it stops, and what it refuses."""

import json
import signal
import threading
import time

import gymnasium
import numpy as np
import pytest
import yaml

from guerdon.config import ConfigError, compose
from guerdon.envs import Identity, UnknownEnvironmentError, UnusableEnvironmentError
from guerdon.policy import PPO
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.process import interrupts
from guerdon.training.run import train
from tests.training.running import config_of, metrics_of, resume, run, state_of


def summary_of(directory):
    return json.loads((directory / "summary.json").read_text())


# --- the folder


def test_a_run_leaves_what_is_documented(tmp_path):
    summary = run("ppo", tmp_path / "run", run={"max_steps": 128})
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"config.yaml", "summary.json", "metrics.jsonl", "tb", "log.txt", "checkpoints"}
    assert compose(tmp_path / "run" / "config.yaml").seed == 3
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "started at step 0" in log
    assert "stopped: max_steps" in log
    assert any((tmp_path / "run" / "tb").iterdir())
    assert summary == summary_of(tmp_path / "run") | {"run_dir": str(tmp_path / "run")}


def test_a_summary_says_how_the_run_went(tmp_path):
    summary = run("ppo", tmp_path / "run", run={"max_steps": 128})
    assert summary.keys() >= {
        "env_steps", "updates", "wall_seconds", "fps", "eval_return_mean", "eval_return_std",
        "best_eval_return_mean", "stop_reason", "seed",
    }  # fmt: skip
    assert summary["env_steps"] == 132  # 4 iterations of 11 steps in 3 environments
    assert summary["updates"] == 4
    assert summary["episodes"] == 12  # of 10 steps; the 11th is broken off at a checkpoint
    assert summary["seed"] == 3
    assert summary["stop_reason"] == "max_steps"
    assert summary["fps"] == pytest.approx(summary["env_steps"] / summary["wall_seconds"])
    lines = [line for line in metrics_of(tmp_path / "run") if "eval/mean_reward" in line]
    assert summary["eval_return_mean"] == lines[-1]["eval/mean_reward"]
    assert summary["eval_return_std"] == lines[-1]["eval/std_reward"]
    assert summary["best_eval_return_mean"] == max(line["eval/mean_reward"] for line in lines)


def test_metrics_have_the_names_everybody_knows(tmp_path):
    run("ppo", tmp_path / "run", run={"max_steps": 64}, collect={"n_step": 64})
    (line,) = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert line.keys() >= {
        "step", "time", "time/fps", "time/time_elapsed", "rollout/ep_rew_mean",
        "rollout/ep_len_mean", "rollout/episodes", "train/n_updates", "train/approx_kl",
        "train/learning_rate", "eval/mean_reward", "eval/std_reward", "eval/mean_ep_length",
    }  # fmt: skip
    assert line["rollout/ep_len_mean"] == line["eval/mean_ep_length"] == 10
    assert all(isinstance(value, int | float) for value in line.values())


def test_the_best_checkpoint_is_that_of_the_best_evaluation(tmp_path):
    summary = run("sac", tmp_path / "run", run={"keep": 1})
    lines = {line["step"]: line.get("eval/mean_reward") for line in metrics_of(tmp_path / "run")}
    _, best = load_checkpoint(tmp_path / "run" / "best")
    assert best == summary["best_step"]
    returns = [found for found in lines.values() if found is not None]
    assert lines[best] == summary["best_eval_return_mean"] == max(returns)
    _, latest = load_checkpoint(tmp_path / "run" / "checkpoints", "latest")
    assert latest == summary["env_steps"]
    _, scheduled = load_checkpoint(tmp_path / "run" / "checkpoints", "scheduled")
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == sorted({scheduled, latest})


def test_checkpoints_lie_where_the_schedule_says(tmp_path):
    schedule = {"checkpoint_every": 50, "log_every": 70, "max_steps": 200, "keep": 100}
    run("ppo", tmp_path / "run", run=schedule, eval={"every": 90}, collect={"n_step": 30})
    # Iterations of 30 steps; at 50, 100, … or the first moment after.
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [60, 120, 150, 210]
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [90, 150, 180, 210]
    assert [line["step"] for line in lines if "eval/mean_reward" in line] == [90, 180, 210]
    assert [line["step"] for line in lines if "train/n_updates" in line] == [90, 150, 210]


@pytest.mark.parametrize(("every", "told"), [(27, 2), (54, 0)])
def test_checkpoints_between_which_no_episode_ends_are_told(every, told, tmp_path):
    pace = {"max_steps": 54, "checkpoint_every": every}
    run("ppo", tmp_path / "run", run=pace, collect={"n_step": 27}, eval={"every": 100})
    log = (tmp_path / "run" / "log.txt").read_text()  # of episodes of 10 steps, in 3 environments
    assert log.count("no episode has ended yet, and each checkpoint truncates them") == told


def test_a_folder_that_holds_a_run_is_not_written_to(tmp_path):
    run("ppo", tmp_path / "run", run={"max_steps": 32})
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match="already holds a run"):
        run("ppo", tmp_path / "run", run={"max_steps": 32})
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_without_a_folder_gets_one_that_is_named_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_of("ppo", "unused", run={"max_steps": 32})
    del config["run"]["dir"]
    summary = train(config, seed=5, display="none")
    (found,) = (tmp_path / "runs").glob("*/*")
    assert found.samefile(summary["run_dir"])
    assert found.name.endswith("-5")
    assert found.parent.name == "Identity-v0_ppo"


def test_overrides_and_the_seed_end_up_in_the_config(tmp_path):
    overrides = ("run.max_steps=64", "policy.gamma=0.5", "eval.episodes=1", "collect.n_step=64")
    train("cartpole_ppo", *overrides, "learn.batch_size=64", f"run.dir={tmp_path}", seed=11,
          display="none")  # fmt: skip
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written["policy"]["gamma"] == 0.5
    assert written["seed"] == summary_of(tmp_path)["seed"] == 11
    assert written["run"]["name"] == "cartpole_ppo"


# --- stopping


def test_a_run_stops_at_a_return(tmp_path):
    summary = run("sac", tmp_path / "run", eval={"every": 32, "target_return": -1e9})
    assert summary["stop_reason"] == "target_return"
    assert summary["env_steps"] == 36
    assert summary["eval_return_mean"] == metrics_of(tmp_path / "run")[-1]["eval/mean_reward"]
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == 36


def test_a_run_that_never_gets_so_far_stops_at_its_steps(tmp_path):
    summary = run("sac", tmp_path / "run", eval={"every": 32, "target_return": 1e9})
    assert summary["stop_reason"] == "max_steps"
    assert 256 <= summary["env_steps"] < 265


def test_a_run_stops_at_a_number_of_updates(tmp_path):
    summary = run("sac", tmp_path / "run", run={"max_updates": 5})
    assert summary["stop_reason"] == "max_updates"
    assert summary["updates"] == 6  # two an iteration
    # Warm-up has no updates: 45 random steps, and 3 iterations of 9.
    assert summary["env_steps"] == 72


def test_a_run_stops_after_some_seconds(tmp_path):
    start = time.monotonic()
    summary = run("sac", tmp_path / "run", run={"max_seconds": 0.3, "max_steps": 10**9})
    assert summary["stop_reason"] == "max_seconds"
    assert 0.3 <= summary["wall_seconds"] <= time.monotonic() - start
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == summary["env_steps"]


def test_seconds_are_those_of_all_starts(tmp_path):
    run("sac", tmp_path / "run", run={"max_seconds": 0.2, "max_steps": 10**9})
    first = summary_of(tmp_path / "run")
    second = resume(tmp_path / "run")
    assert second["wall_seconds"] == first["wall_seconds"]  # they are used up
    assert second["stop_reason"] == "max_seconds"
    third = resume(tmp_path / "run", "run.max_seconds=0.3")
    assert third["env_steps"] > first["env_steps"]
    assert third["wall_seconds"] >= 0.3


class Interrupting(PPO):
    """Presses Ctrl-C in its third update, as often as it is told."""

    presses = 1
    number = signal.SIGINT

    def update(self, *args, **options):
        if self.updates == 2:
            for _ in range(self.presses):
                signal.raise_signal(self.number)
        return super().update(*args, **options)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_first(number, tmp_path):
    class Asked(Interrupting):
        pass

    Asked.number = number
    before = signal.getsignal(number)
    far = {"checkpoint_every": 10**6, "log_every": 10**6, "max_steps": 10**6}
    config = config_of("ppo", tmp_path / "run", run=far, eval={"every": 10**6})
    summary = train(config, policy_fn=Asked, display="none")
    assert signal.getsignal(number) is before
    assert summary["stop_reason"] == summary_of(tmp_path / "run")["stop_reason"] == "interrupted"
    assert summary["env_steps"] == 99  # it finishes the iteration
    assert summary["updates"] == 3
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [99]
    assert np.isnan(summary["eval_return_mean"])  # nobody has to wait for an evaluation
    state = state_of(tmp_path / "run", 99)
    assert state["/monitor/progress/updates"] == state["/policy/updates"] == 3
    summary = resume(tmp_path / "run", "run.max_steps=132")
    assert summary["stop_reason"] == "max_steps"
    assert summary["env_steps"] == 132


@pytest.mark.usefixtures("signals")
def test_the_first_ctrl_c_is_answered_at_once(capfd):
    with interrupts() as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked()
        said = "stopping after this iteration; press Ctrl-C again to stop at once\n"
        assert capfd.readouterr().err == said


@pytest.mark.usefixtures("signals")
def test_a_second_ctrl_c_ends_at_once(tmp_path):
    class Impatient(Interrupting):
        presses = 2

    with pytest.raises(KeyboardInterrupt):
        train(config_of("ppo", tmp_path / "run"), policy_fn=Impatient, display="none")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not (tmp_path / "run" / "summary.json").exists()
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [33, 66]
    assert resume(tmp_path / "run")["stop_reason"] == "max_steps"  # and the folder is free


@pytest.mark.usefixtures("signals")
def test_a_signal_that_is_ignored_stays_ignored(capfd):
    """As SIGHUP is under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interrupts() as asked:
        signal.raise_signal(signal.SIGHUP)
        assert not asked()
        signal.raise_signal(signal.SIGTERM)
        assert asked()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert "stopping" in capfd.readouterr().err


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    summaries = []
    thread = threading.Thread(
        target=lambda: summaries.append(run("ppo", tmp_path / "run", run={"max_steps": 32}))
    )
    thread.start()
    thread.join()
    assert summaries[0]["stop_reason"] == "max_steps"
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_gives_signals_back():
    before = signal.getsignal(signal.SIGINT)

    def fail():
        with interrupts() as asked:
            assert not asked()
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        fail()
    assert signal.getsignal(signal.SIGINT) is before


# --- what cannot be


@pytest.mark.parametrize(
    ("sections", "error"),
    [
        ({"env": {"id": "NoSuchThing-v7"}}, UnknownEnvironmentError),
        ({"env": {"id": "Pendulum-v1"}, "policy": {"type": "dqn"}}, (ValueError, ConfigError)),
        ({"policy": {"type": "ppo", "gama": 0.9}}, ConfigError),
        ({"env": {"kwargs": {"nonsense": 1}}}, UnusableEnvironmentError),
        ({"env": {"kwargs": {"nonsense": 1}, "backend": "subprocess"}}, UnusableEnvironmentError),
        ({"reward": {"terms": {"no_such_reward": {}}}}, ConfigError),
    ],
)
def test_a_config_that_cannot_be_built_leaves_no_folder(sections, error, tmp_path):
    with pytest.raises(error):
        run("ppo", tmp_path / "run", **sections)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_breaks_leaves_its_folder_free_for_a_resume(tmp_path):
    class Breaking(PPO):
        def update(self, *args, **options):
            if self.updates == 3:
                raise RuntimeError("oops")
            return super().update(*args, **options)

    with pytest.raises(RuntimeError, match="oops"):
        train(config_of("ppo", tmp_path / "run"), seed=3, policy_fn=Breaking, display="none")
    assert not (tmp_path / "run" / "summary.json").exists()
    assert resume(tmp_path / "run")["env_steps"] == 264


# --- environments


def test_a_function_makes_the_environments_of_collecting_and_of_evaluating(tmp_path):
    made = []

    def make(length):
        made.append(length)
        return Identity(length=length)

    config = config_of("ppo", tmp_path / "run", run={"max_steps": 64}, eval={"n_envs": 1})
    summary = train(config, env_setting=(make, [5, 7], [9]), display="none")
    assert made == [5, 7, 9]
    lines = metrics_of(tmp_path / "run")
    assert {line["eval/mean_ep_length"] for line in lines if "eval/mean_reward" in line} == {9}
    assert summary["env_steps"] == 64


def test_a_run_goes_on_when_environments_fail(tmp_path):
    counting = {"id": "guerdon/Counting-v0", "kwargs": {"lengths": [6]}, "backend": "subprocess"}
    settings = [{"fails_at": 20}, {}, {}]
    summary = run(
        "ppo", tmp_path / "run",
        env=counting | {"settings": settings, "eval": {"settings": [], "backend": "base"}},
        run={"max_steps": 96},
    )  # fmt: skip
    assert summary["stop_reason"] == "max_steps"
    assert summary["eval_return_mean"] == 21.0
    assert all(
        line.get("rollout/ep_rew_mean", 21.0) == 21.0 for line in metrics_of(tmp_path / "run")
    )


@pytest.mark.parametrize("case", ["ppo", "sac"])
def test_asynchronous_environments_train_too(case, tmp_path):
    env = {"backend": "async_subprocess", "n_envs": 2, "eval": {"backend": "base"}}
    summary = run(case, tmp_path / "run", env=env, run={"max_steps": 64})
    assert summary["stop_reason"] == "max_steps"
    assert 64 <= summary["env_steps"] < 64 + 33


def test_episodes_are_collected_where_the_config_says_so(tmp_path):
    episodes = {"n_step": None, "n_episode": 5}
    summary = run("ppo", tmp_path / "one", collect=episodes, run={"max_steps": 100})
    assert (summary["env_steps"], summary["episodes"], summary["updates"]) == (100, 10, 2)
    summary = run("sac", tmp_path / "two", collect=episodes, run={"max_steps": 100})
    assert (summary["env_steps"], summary["episodes"], summary["updates"]) == (100, 10, 2)


# --- before the first step


class Unusable(gymnasium.Env):
    """Fails at its first reset or step, or works."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at=""):
        self.at = at

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        if self.at == "reset":
            raise OSError("the robot is off")
        return np.zeros(2, np.float32), {}

    def step(self, action):  # noqa: ARG002
        if self.at == "step":
            raise OSError("the robot is off")
        return np.zeros(2, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize("at", ["reset", "step"])
@pytest.mark.parametrize("named", [True, False])
def test_a_run_that_fails_before_its_first_step_leaves_no_folder(tmp_path, monkeypatch, at, named):
    monkeypatch.chdir(tmp_path)
    options = [
        f"env.id={__name__}:Unusable", f"env.kwargs.at={at}", "policy=ppo", "env.n_envs=1",
        "run.max_steps=100",
    ]  # fmt: skip
    with pytest.raises(Exception, match="the robot is off"):
        train(None, *options, *["run.dir=mine"] * named, display="none")
    assert not list(tmp_path.glob("**/config.yaml"))
    assert not (tmp_path / "mine").exists()
    assert not list(tmp_path.glob("runs/*"))


class Unlabelled(gymnasium.Env):
    """Shows pictures, but never says whether one shows success."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        return np.zeros((8, 8, 3), np.uint8), {}

    def step(self, action):  # noqa: ARG002
        return np.zeros((8, 8, 3), np.uint8), 0.0, True, False, {}


def test_a_collecting_run_that_fails_at_its_first_step_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["policy=ppo", "env.n_envs=1", "run.max_steps=100", "reward.collect_data=true"]
    with pytest.raises(ValueError, match="info has no 'success' for some steps"):
        train(None, f"env.id={__name__}:Unlabelled", *options, display="none")
    assert not list(tmp_path.iterdir())


def test_files_of_the_user_survive_such_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    options = ["policy=ppo", "env.n_envs=1", "run.max_steps=100", f"run.dir={tmp_path}"]
    with pytest.raises(Exception, match="the robot is off"):
        train(None, f"env.id={__name__}:Unusable", "env.kwargs.at=step", *options, display="none")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
