"""Workers and runs that are killed, hang or raise errors."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from guerdon.training.callback import Callback
from guerdon.training.checkpoints import checkpoint_steps
from guerdon.training.run import train
from tests.parallel.environments import LENGTH
from tests.parallel.test_asynchronous import logged, rollouts
from tests.training.running import CASES, config_of, differences, resume


def config(case, folder, env, runtime, **sections):
    found = config_of(case, folder, env=env, runtime={"type": "ray", "num_collectors": 2} | runtime)
    found["run"]["checkpoint_every"] = 64
    return {**found, **sections}


FAULTY = f"{Path(__file__).parent / 'environments.py'}:Faulty"


def long(made):
    """Make a run of a config one that ends when it is stopped."""
    made["run"] |= {"max_steps": 1_000_000, "log_every": 128, "checkpoint_every": 100_000}
    made["eval"]["every"] = 100_000
    return made


def faulty(*settings):
    """Two environments of each of two collectors; the first one has settings of its own."""
    return {
        "id": FAULTY, "n_envs": 4, "settings": [*settings, {}, {}, {}], "backend": "base",
        "eval": {"settings": []},
    }  # fmt: skip


class UntilRestarted(Callback):
    """Stops the run when the first collector has been restarted, and a rollout of it accepted.

    Args:
        kills: Whether to kill it after its first accepted rollout.
    """

    def __init__(self, kills=False):
        self.kills, self.iterations = kills, 0

    def on_iteration(self, run):
        self.iterations += 1
        logs = run.path / "log"
        if self.iterations < 3 or (self.iterations % 10 and not self.kills):
            return
        text = (logs / "coordinator" / "coordinator.txt").read_text()
        if self.kills and "rollout 0.1." in text:
            text = (logs / "collector" / "0.txt").read_text()
            os.kill(int(re.search(r"running in process (\d+)", text)[1]), signal.SIGKILL)
            self.kills = False
        elif "rollout 0.2." in text:
            run.stop()


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("case", ["ppo", "dqn_prioritized_3_step"])
def test_a_collector_that_is_killed_is_restarted(case, mode, tmp_path):
    env = {**CASES[case]["env"], "n_envs": 4}
    made = long(config(case, tmp_path / "run", env, {"mode": mode}))
    summary = train(made, display="none", callback=UntilRestarted(kills=True))
    assert summary["stop_reason"] == "callback"
    assert logged(tmp_path / "run", "runtime/restarts")[-1] == 1
    assert logged(tmp_path / "run", "runtime/lost_steps")[-1] > 0
    steps = logged(tmp_path / "run", "step")
    assert steps == sorted(steps)
    found = rollouts(tmp_path / "run")
    names = [name for name, _, _ in found]
    assert len({*names}) == len(names)
    assert sum(int(each) for _, each, _ in found) == summary["env_steps"]
    # The new one acts with current weights, and its rollouts are new ones.
    versions = {name: int(version) for name, _, version in found}
    before = max(version for name, version in versions.items() if name.startswith("0.1."))
    assert min(version for name, version in versions.items() if name[:4] == "0.2.") > before
    assert "collector 0: its process died" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("fault", "mode"),
    [
        ("raise", "sync"), ("hang", "sync"), ("hang", "async"), ("nan", "async"),
        ("abort", "sync"), ("abort", "async"),
    ],
)  # fmt: skip
def test_an_environment_that_fails_once(fault, mode, tmp_path):
    env = faulty({"fault": fault, "marker": str(tmp_path / "marker")})
    runtime = {"timeout": 15.0 if fault == "hang" else 60.0, "mode": mode}
    folder = tmp_path / "run"
    made = long(config("ppo", folder, env, runtime))
    summary = train(made, display="none", callback=UntilRestarted())
    assert summary["stop_reason"] == "callback"
    assert summary["eval_return_mean"] == LENGTH
    assert logged(folder, "runtime/restarts")[-1] == 1
    text = (folder / "log.txt").read_text()
    reason = {
        "raise": "ZeroDivisionError: the motor is off",
        "hang": "it did not answer within 'runtime.timeout' seconds",
        "nan": "reward",
        "abort": "its process died:\nFatal Python error: Aborted",
    }[fault]
    assert reason in text
    if fault in ("raise", "abort"):  # the traceback of the worker
        assert re.search(r'File ".*environments.py", line \d+,? in step', text)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_environment_that_always_fails_stops_the_run(mode, tmp_path):
    runtime = {"max_restarts": 1, "mode": mode}
    made = long(config("ppo", tmp_path / "run", faulty({"fault": "raise"}), runtime))
    with pytest.raises(RuntimeError) as caught:
        train(made, display="none")
    assert str(caught.value) == (
        "collector 0 failed, and 'runtime.max_restarts' is 1; first failure: collector 0: "
        "ZeroDivisionError: the motor is off"
    )
    assert re.search(r'File ".*environments.py", line \d+, in step', str(caught.value.__cause__))


@pytest.mark.usefixtures("ray")
def test_rollouts_that_are_too_old_are_dropped(tmp_path):
    slow = {"delay": 0.01}
    env = {**faulty(slow), "settings": [slow, slow, {}, {}]}
    config_ = config("ppo", tmp_path / "run", env, {"mode": "async", "max_staleness": 1})
    config_["run"]["max_steps"] = 1024
    train(config_, display="none")
    assert max(logged(tmp_path / "run", "runtime/max_staleness")) <= 1
    assert logged(tmp_path / "run", "runtime/dropped_steps")[-1] > 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_full_object_store_stops_no_run(mode, ray, tmp_path):
    env = {**CASES["ppo"]["env"], "n_envs": 4}
    made = config("ppo", tmp_path / "run", env, {"mode": mode})
    made["policy"] = {**made["policy"], "model": {"hidden": [512, 512]}}  # weights of 1 MiB
    array = np.ones(1 << 20)
    held = [ray.get(ray.put(array)) for _ in range(12)]  # they stay in the store
    assert sum(each.nbytes for each in held) > ray.cluster_resources()["object_store_memory"]
    summary = train(made, display="none")
    assert summary["stop_reason"] == "max_steps"
    assert logged(tmp_path / "run", "runtime/restarts")[-1] == 0
    assert all(np.array_equal(each, array) for each in held)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "then"),
    [
        ("sync", "replaced"), ("async", "replaced"), ("sync", "lost"), ("async", "lost"),
        ("sync", "alone"), ("async", "alone"),
    ],
)  # fmt: skip
def test_a_node_that_disappears(mode, then, tmp_path):
    quick = {"period_ms": "1000", "failure_threshold": "3", "initial_delay_ms": "1000"}
    env = {**os.environ, **{f"RAY_health_check_{key}": value for key, value in quick.items()}}
    found = subprocess.run(
        [sys.executable, "-m", "tests.parallel.lost_node", tmp_path / "run", mode, then],
        env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    log = (tmp_path / "run" / "log.txt").read_text()
    number = re.search(r"restarting collector (\d): its process died", log)[1]
    if then != "replaced":
        assert f"waiting for collector {number} to start, on 1 node" in log
    if then == "alone" or (mode, then) == ("sync", "lost"):
        waited = f"collector {number} has not started again within 'runtime.wait_seconds', 20 s"
        assert f"{waited}, on 1 node: add nodes, and continue with --resume" in found.stderr
        return
    assert found.returncode == 0, found.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stop_reason"] == "callback"


def test_two_runs_of_a_process_do_not_end_each_others_ray():
    program = (
        "from guerdon.config.schema import RuntimeConfig\n"
        "from guerdon.parallel import cluster\n"
        "with cluster.connected(RuntimeConfig(type='ray'), {'collector 0': {'CPU': 1}}, {}):\n"
        "    with cluster.connected(RuntimeConfig(type='ray'), {}, {}): pass"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "RuntimeError: another run on Ray is going on in this process" in found.stderr


def test_what_a_cluster_lacks_is_named(ray):
    from guerdon.parallel.cluster import reserved

    with (
        pytest.raises(RuntimeError) as caught,
        reserved(
            {"learner 0": {"CPU": 60.0}, "collector 0": {"CPU": 40.0, "GPU": 1.0}}, wait_seconds=0.5
        ),
    ):
        pass
    assert "there are 1 node, 100 CPUs are wanted, 4 there" in str(caught.value)
    assert "1 GPUs are wanted, 0 there" in str(caught.value)
    assert all(each["state"] == "REMOVED" for each in ray.util.placement_group_table().values())


LATE = "waiting for collector 1; evaluator 1 to start, on 1 node"


class Late(logging.Handler):
    """Keeps warnings, and makes a file when only some workers are missing."""

    def __init__(self, path):
        super().__init__(logging.WARNING)
        self.path, self.texts = path, []

    def emit(self, record):
        self.texts.append(record.getMessage())
        if self.texts[-1] == LATE or len(self.texts) > 600:
            self.path.touch()


@pytest.mark.usefixtures("ray")
def test_workers_that_have_not_joined_are_named(tmp_path, monkeypatch):
    from guerdon.parallel import cluster, workers

    def make(number, start):  # noqa: ARG001
        while number == 1 and not (tmp_path / "go").exists():
            time.sleep(0.01)

    monkeypatch.setattr(cluster, "REPORT", 0.1)
    late, logger = Late(tmp_path / "go"), logging.getLogger("guerdon.parallel")
    made = [
        workers.Worker(role, i, make, [], {"num_cpus": 0}, workers.Restarts(0))
        for role, i in (("collector", 0), ("collector", 1), ("evaluator", 1))
    ]
    logger.addHandler(late)
    try:
        workers.start_all(made)
    finally:
        logger.removeHandler(late)
        for each in made:
            each.stop()
    assert LATE in late.texts


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_no_cluster_at_an_address(address):
    program = (
        "from guerdon.config.schema import RuntimeConfig\n"
        "from guerdon.parallel.cluster import connected\n"
        f"with connected(RuntimeConfig(type='ray', address={address!r}), {{}}, {{}}): pass"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert f"there is no Ray cluster at 'runtime.address' '{address}'" in found.stderr


# --- runs that start Ray themselves


def processes_with(marker):
    """The processes with a marker in the variables that they were started with."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if marker.encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def shared_memory():
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.fixture(params=[0, 1])
def program(tmp_path, request):
    """A command that trains on Ray, and what it leaves behind."""
    path = tmp_path / "config.yaml"
    env = {**CASES["ppo_normalized"]["env"], "n_envs": 4}
    made = config("ppo_normalized", tmp_path / "killed", env, {"num_learners": request.param})
    made["run"] |= {"dir": str(tmp_path / "killed"), "max_steps": 100_000}
    path.write_text(json.dumps(made))
    return [sys.executable, "-m", "guerdon", "train", str(path), "seed=3"]


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT],  # agents take a minute
)
def test_a_run_that_is_stopped_leaves_nothing_and_is_resumed(number, program, tmp_path):
    memory, folder, marker = shared_memory(), tmp_path / "killed", f"MARKER={tmp_path}"
    # Without what Ray of this process has set.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        ["env", marker, *program], env=clean,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, text=True,
    )  # fmt: skip
    wait_for(lambda: len(checkpoint_steps(folder / "checkpoints")) >= 2 or process.poll())
    assert len(processes_with(marker)) > 3
    if number == signal.SIGINT:  # as Ctrl-C in a terminal does, to all processes
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert "step" in output, output
    if number == signal.SIGINT:
        assert process.returncode == 130, output
    wait_for(lambda: not processes_with(marker), 150)
    assert shared_memory() <= memory
    step = checkpoint_steps(folder / "checkpoints")[-1]
    limit = f"run.max_steps={step + 64}"
    resume(folder, limit, "runtime=serial")
    again = config_of(
        "ppo_normalized", tmp_path / "whole",
        env={**CASES["ppo_normalized"]["env"], "n_envs": 4},
    )  # fmt: skip
    again["run"] |= {"max_steps": step + 64, "checkpoint_every": 64}
    again["collect"]["shards"] = 2
    if number == signal.SIGKILL:  # an interrupt saves off schedule
        train(again, seed=3, display="none")
        (*_, last) = checkpoint_steps(folder / "checkpoints")
        found = differences(folder, tmp_path / "whole", last)
        assert not [each for each in found if each.startswith(("/policy", "/reward"))], step


def test_a_raylet_that_dies_ends_a_run_with_a_sentence(tmp_path):
    marker, folder = f"MARKER={tmp_path}", tmp_path / "run"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    options = ("runtime=ray", "run.max_steps=10_000_000", f"run.dir={folder}")
    process = subprocess.Popen(
        ["env", marker, sys.executable, "-m", "guerdon", "train", "cartpole_ppo", *options],
        env=clean, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = folder / "metrics.jsonl"
    wait_for(lambda: (metrics.exists() and metrics.stat().st_size) or process.poll())
    (raylet,) = (
        number
        for number in processes_with(marker)
        if Path(f"/proc/{number}/comm").read_text() == "raylet\n"
    )
    os.kill(raylet, signal.SIGKILL)
    _, errors = process.communicate(timeout=90)
    (said,) = errors.splitlines()
    assert said.startswith("Error: the run has ended without saving, since Ray's raylet or GCS")
    wait_for(lambda: not processes_with(marker), 150)
