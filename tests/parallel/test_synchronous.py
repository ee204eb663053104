"""A run on Ray learns the same as a serial one with as many shards, bit for bit."""

import copy
import json
import subprocess
import sys

import pytest

from guerdon.config import compose
from guerdon.config.errors import ConfigError
from guerdon.entry import parallel_pipeline
from guerdon.training.checkpoints import checkpoint_steps
from guerdon.training.run import train
from tests.training.running import CASES, config_of, differences, metrics_of, resume, run
from tests.training.test_evaluation_apart import CASES as EPISODES
from tests.training.test_noise_law import (
    files,  # noqa: F401 - a fixture
    fill_paths,
    make_config,
    uses_camera,
)

RAY = {"type": "ray", "num_collectors": 2}
ENVS = {"n_envs": 4}
OWN = tuple(f"/collector/{name}" for name in ("starts", "lost_steps", "steps_lost", "accepted"))
OWN = ("/config/runtime/", "/monitor/newest/runtime/", *OWN)
"""What only the checkpoints of runs on Ray have, or have otherwise."""


def run_serial(case, folder, **sections):
    env, collect = {**CASES[case]["env"], **ENVS}, {**CASES[case]["collect"], "shards": 2}
    return run(case, folder, env=env, collect=collect, **sections)


def run_on_ray(case, folder, runtime=RAY, **sections):
    return run(case, folder, env={**CASES[case]["env"], **ENVS}, runtime=runtime, **sections)


@pytest.mark.usefixtures("ray")
def test_several_evaluators_divide_the_episodes(tmp_path):
    """Both evaluate the same weights; the environments have different lengths of episodes."""
    env = {
        "id": "guerdon.envs.counting:Counting", "n_envs": 2,
        "eval": {"settings": [{"lengths": [2]}, {"lengths": [4]}, {"lengths": [6]}]},
    }  # fmt: skip
    runtime = {"type": "ray", "num_collectors": 1, "num_evaluators": 2}
    section = {"episodes": 7, "n_envs": 3, "every": 64}
    folder = tmp_path / "run"
    train(config_of("ppo", folder, env=env, runtime=runtime, eval=section), display="none")
    # 4 episodes of two environments, with returns of 3 and 10, and 3 of one with 21.
    expected = (2 * 3 + 2 * 10 + 3 * 21) / 7
    found = [line["eval/mean_reward"] for line in metrics_of(folder) if "eval/mean_reward" in line]
    assert found == pytest.approx([expected] * len(found))
    assert len(found) == 4
    assert "running in process" in (folder / "log" / "evaluator" / "1.txt").read_text()
    assert "1 collector, 2 evaluators on 1 node" in (folder / "log.txt").read_text()


def assert_same_learning(serial, on_ray):
    steps = checkpoint_steps(serial / "checkpoints")
    assert len(steps) >= 2
    assert steps == checkpoint_steps(on_ray / "checkpoints")
    for step in steps:
        found = [each for each in differences(serial, on_ray, step) if not each.startswith(OWN)]
        assert not found, (step, found)
    for one, other in zip(metrics_of(serial), metrics_of(on_ray), strict=True):
        assert one == {key: other[key] for key in other if not key.startswith("runtime/")}
    for name in ("checkpoints/latest", "checkpoints/scheduled", "best/latest"):
        assert (serial / name).read_bytes() == (on_ray / name).read_bytes()


FEW = ("ppo_normalized", "dqn_prioritized_3_step")


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    "case",
    [
        case if case in FEW else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
        if "collect" in CASES[case]
    ],
)
def test_learns_the_same_as_a_serial_run(case, tmp_path):
    run_serial(case, tmp_path / "serial")
    run_on_ray(case, tmp_path / "ray")
    assert_same_learning(tmp_path / "serial", tmp_path / "ray")


REWARDS = {
    "gail": {"gail": {"expert_data_path": "zoo:cartpole"}},
    "pwil": {"pwil": {"expert_data_path": "zoo:cartpole"}},
    "rnd and env": {"rnd": {"weight": 0.1}, "env": {}},
}


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    "reward", ["gail", *(pytest.param(name, marks=pytest.mark.slow) for name in [*REWARDS][1:])]
)
def test_learned_rewards_learn_the_same(reward, tmp_path):
    changes = {"reward": {"terms": REWARDS[reward]}}
    run_serial("ppo_normalized", tmp_path / "serial", **changes)
    runtime = {**RAY, "num_evaluators": 1, "num_reward_workers": 1}
    run_on_ray("ppo_normalized", tmp_path / "ray", runtime=runtime, **changes)
    assert_same_learning(tmp_path / "serial", tmp_path / "ray")


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("first", ["serial", "ray"])
def test_a_run_can_be_resumed_elsewhere(first, tmp_path):
    case, half = "ppo_normalized", {"max_steps": 128}
    run_serial(case, tmp_path / "serial")
    started = config_of(case, tmp_path / "moved")["run"] | half
    if first == "serial":
        run_serial(case, tmp_path / "moved", run=started)
        resume(tmp_path / "moved", "run.max_steps=256", "runtime=ray", "runtime.num_collectors=2")
    else:
        run_on_ray(case, tmp_path / "moved", run=started)
        resume(tmp_path / "moved", "run.max_steps=256", "runtime=serial")
    (*_, last) = checkpoint_steps(tmp_path / "serial" / "checkpoints")
    found = differences(tmp_path / "serial", tmp_path / "moved", last)
    assert not [each for each in found if each.startswith(("/policy", "/reward", "/evaluator"))]


@pytest.mark.usefixtures("ray")
def test_logs_of_roles(tmp_path):
    run_on_ray("ppo", tmp_path / "run")
    folder = tmp_path / "run" / "log"
    assert "train/value_loss" in (folder / "learner" / "learner.txt").read_text()
    assert "eval/mean_reward" in (folder / "evaluator" / "evaluator.txt").read_text()
    assert "rollout/episodes" in (folder / "coordinator" / "coordinator.txt").read_text()
    assert {path.name for path in (folder / "collector").iterdir()} == {"0.txt", "1.txt"}
    assert "2 collectors on 1 node" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.usefixtures("ray")
def test_parallel_pipeline(tmp_path):
    config = config_of("ppo", tmp_path / "run", runtime={"num_collectors": 3})
    config["runtime"] = {"type": "ray", "num_collectors": 3}
    summary = parallel_pipeline(config, seed=2)
    assert summary["env_steps"] >= 256
    assert summary["seed"] == 2


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("learners", [0, 1])
def test_errors_of_environments_are_those_of_a_serial_run(learners, tmp_path):
    runtime = RAY | {"num_learners": learners}
    config = config_of("ppo", tmp_path / "run", env={"id": "no/Such-v0", **ENVS}, runtime=runtime)
    serial = {**config, "runtime": {"type": "serial"}}
    messages = []
    for each in (config, serial):
        with pytest.raises(ValueError, match="no/Such") as caught:
            train(each, display="none")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert not (tmp_path / "run").exists()


def test_a_serial_run_does_not_import_ray(tmp_path):
    program = (
        "import sys, guerdon; guerdon.train('cartpole_ppo', 'run.max_steps=256', "
        f"'collect.n_step=256', 'collect.shards=2', run={{'dir': {str(tmp_path / 'run')!r}}}, "
        "display='none');"
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("runtime=ray", "runtime.num_collectors=3"),
            "which 'runtime.num_collectors' \\(3\\) does",
        ),
        (("collect.shards=3",), "which 'collect.shards' \\(3\\) does not divide"),
        (("runtime.num_collectors=2",), "no effect, since 'runtime.type' is serial"),
        (("runtime=ray", "collect.shards=2"), "leave 'collect.shards' out"),
        (("runtime=Ray",), "'runtime.type' is 'Ray'"),
        (("runtime=ray", "runtime.num_evaluators=11"), "more than 'eval.n_envs' \\(10\\)"),
        (
            ("collect.n_episode=1", "collect.shards=2"),
            "'collect.n_episode' is 1, less than 'collect.shards' \\(2\\)",
        ),
    ],
)
def test_options_that_do_not_fit(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose("cartpole_ppo", ("env.n_envs=8", *overrides))


def test_going_back_to_serial_drops_the_options_of_ray(tmp_path):
    path = tmp_path / "config.json.yaml"
    path.write_text(
        json.dumps(
            config_of("ppo", tmp_path / "run", env={**CASES["ppo"]["env"], **ENVS}, runtime=RAY)
        )
    )
    assert compose(path).n_shards == 2
    assert compose(path, ["runtime=serial"]).n_shards is None


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    "name",
    ["classifier_online", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ngu", "pwil"))],
)
def test_rewards_of_episodes_learn_the_same(name, files, tmp_path):  # noqa: F811
    """With the classifier, success ends episodes in the collectors."""
    policy, reward = EPISODES[name]
    camera = uses_camera(name)
    section = fill_paths(copy.deepcopy(reward), files(policy, "classifier" if camera else "gail"))
    for kind in ("serial", "ray"):
        made = make_config(policy, section, tmp_path / kind, camera=camera)
        made["env"]["n_envs"], made["eval"] = 4, {"every": 32, "episodes": 3, "n_envs": 2}
        made |= {"runtime": RAY} if kind == "ray" else {}
        made["collect"] = made["collect"] | ({"shards": 2} if kind == "serial" else {})
        summary = train(made, display="none")
        assert summary["episodes"] >= 10
    assert_same_learning(tmp_path / "serial", tmp_path / "ray")
