"""Environments in processes that die, raise or hang; and what is left of them in the end."""

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from guerdon.envs import EnvironmentFailedError, UnusableEnvironmentError, make_vec
from tests.envs.looking import Looking, Telling
from tests.envs.walking import Pattern, check_buffer, made, numbers, walk

PROCESSES = ["subprocess", "async_subprocess"]
LONG = Pattern(lengths=(10_000,))


def pids(env) -> list[int]:
    return [env._workers[i].process.pid for i in range(env.n_envs)]


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(condition, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def failing(backend: str, failure: str, at: int = 4, n_envs: int = 2, **kwargs):
    """Environments of which the last fails."""
    settings = numbers(n_envs, **LONG.kwargs())
    settings[-1] |= {"fails_at": at, "failure": failure}
    return make_vec("guerdon/Counting-v0", n_envs, backend=backend, settings=settings, **kwargs)


# --- failures


@pytest.mark.parametrize("backend", PROCESSES)
def test_a_killed_environment_is_restarted_and_the_others_go_on(backend, caplog):
    pattern = Pattern(lengths=(7, 4))
    with made(backend, pattern, 3) as env:

        def kill_one(t):
            if t == 20:
                os.kill(pids(env)[1], signal.SIGKILL)

        found = walk(
            env,
            pattern,
            100_000,
            before_step=kill_one,
            until=lambda found: found.broken and len(found.rows[1]) > 5,
        )
        assert env.restarts == 1
    assert found.broken == [1]
    assert found.n_dummies == 1
    for rows in found.rows:  # of the restarted one: those after the restart
        assert rows == pattern.rows(len(rows))
        assert len(rows) > 5
    check_buffer(found, len(found.buffer))
    said = "environment 1 of 'guerdon/Counting-v0' failed and is restarted; its episode is lost"
    assert said in caplog.text
    assert "exit code -9" in caplog.text


@pytest.mark.parametrize("backend", PROCESSES)
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ("raise", "RuntimeError: Counting fails at step 4"),
        ("hang", "it gave no answer within 0.5 s"),
        ("kill", "exit code -9"),
    ],
)
def test_every_failure_is_a_broken_episode(backend, failure, told, caplog):
    with failing(backend, failure, timeout=0.5) as env:
        found = walk(env, LONG, 3)
        assert found.broken == []
        step = env.step(np.zeros(len(env._ready), np.int64))
        while step.broken is None:
            step = env.step(np.zeros(len(step.obs), np.int64))
        row = 1 if env.synchronous else step.env_ids.tolist().index(1)
        assert step.broken.tolist() == [1]
        assert step.dummy[row]
        assert step.dummy.sum() == 1
        assert step.obs[row].tolist() == step.obs_next[row].tolist() == [1, 0, 0]
        assert step.rew[row] == 0
        assert not (step.terminated | step.truncated).any()
    assert told in caplog.text


def test_an_environment_that_hangs_does_not_stop_the_others():
    with failing("async_subprocess", "hang", at=1, n_envs=3, timeout=30) as env:
        env.reset(0)
        counts = np.zeros(3, int)
        started = time.monotonic()
        n = 3
        while min(counts[:2]) <= 5:
            step = env.step(np.zeros(n, np.int64))
            counts[step.env_ids] += 1
            n = len(step.env_ids)
        assert time.monotonic() - started < 20
        assert counts[2] == 0
        with pytest.raises(ValueError, match=r"environments \[2\] are still at their last step"):
            env.step(np.zeros(1, np.int64), np.array([2]))


@pytest.mark.parametrize("backend", PROCESSES)
def test_too_many_restarts_end_the_run_with_the_last_traceback(backend):
    with failing(backend, "raise", at=2, max_restarts=2) as env:
        env.reset(0)
        known = pids(env)
        with pytest.raises(EnvironmentFailedError) as error:
            walk_on(env, 100_000)
    text = str(error.value)
    assert "environment 1 of 'guerdon/Counting-v0' failed, and all 2 restarts are used up" in text
    assert "in step" in text
    assert "RuntimeError: Counting fails at step 2 (option fails_at)" in text
    assert not any(map(is_alive, known))


def walk_on(env, n_steps):
    n = env.n_envs
    for _ in range(n_steps):
        n = len(env.step(np.zeros(n, np.int64)).obs)


def test_without_restarts_the_first_failure_ends_the_run():
    with failing("subprocess", "kill", at=1, max_restarts=0) as env:
        env.reset(0)
        with pytest.raises(EnvironmentFailedError, match=r"all 0 restarts.*exit code -9"):
            env.step(np.zeros(2, np.int64))


def test_an_environment_that_died_between_steps_is_restarted():
    for backend in PROCESSES:
        with made(backend, LONG, 2) as env:
            env.reset(0)
            os.kill(pids(env)[0], signal.SIGKILL)
            assert wait_until(lambda env=env: env._workers[0].process.exitcode is not None)
            step = env.step(np.zeros(2, np.int64))
            while step.broken is None:
                step = env.step(np.zeros(len(step.obs), np.int64))
            assert step.broken.tolist() == [0]
            assert env.restarts == 1


def test_an_idle_environment_that_died_takes_no_action_and_is_reported():
    with made("async_subprocess", LONG, 2) as env:
        env.reset(0)
        os.kill(pids(env)[1], signal.SIGKILL)
        assert wait_until(lambda: env._workers[1].process.exitcode is not None)
        while env.restarts == 0:  # only the other one steps
            env.step(np.zeros(1, np.int64), np.array([0]))
        step = env.step(np.zeros(1, np.int64), np.array([1]))
        while 1 not in step.env_ids:
            step = env.step(np.zeros(0, np.int64), np.zeros(0, np.int64))
        assert step.broken.tolist() == [1]
        assert step.obs[step.env_ids == 1].tolist() == [[1, 0, 0]]


def test_a_failure_while_resetting_is_no_broken_episode():
    with made("subprocess", LONG, 2) as env:
        os.kill(pids(env)[0], signal.SIGKILL)
        assert env.reset(0).tolist() == [[0, 0, 0], [1, 0, 0]]
        assert env.restarts == 1
        step = env.step(np.zeros(2, np.int64))
        assert step.broken is None
        assert step.obs.tolist() == [[0, 0, 1], [1, 0, 1]]


def test_an_answer_of_an_environment_that_died_after_it_is_lost():
    with made("subprocess", LONG, 2) as env:
        env.reset(0)
        slow = env._workers[0].process.pid
        os.kill(slow, signal.SIGSTOP)  # so that the other one answers, and dies, before

        def kill_other():
            time.sleep(0.3)
            os.kill(pids(env)[1], signal.SIGKILL)
            wait_until(lambda: env.restarts == 1)
            os.kill(slow, signal.SIGCONT)

        killer = threading.Thread(target=kill_other)
        killer.start()
        step = env.step(np.zeros(2, np.int64))
        killer.join()
        assert step.broken.tolist() == [1]
        assert step.obs.tolist() == [[0, 0, 1], [1, 0, 0]]
        step = env.step(np.zeros(2, np.int64))
        assert step.broken is None
        assert step.obs.tolist() == [[0, 0, 2], [1, 0, 1]]


def test_an_interrupt_is_not_for_the_environments():
    with made("subprocess", LONG, 2) as env:
        env.reset(0)
        for pid in pids(env):
            os.kill(pid, signal.SIGINT)
        for _ in range(3):
            step = env.step(np.zeros(2, np.int64))
        assert step.obs[:, 2].tolist() == [3, 3]
        assert env.restarts == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_interrupt_is_held_back_from_the_start_of_a_process():
    """One that comes while it imports would be printed with a traceback."""
    with made("subprocess", LONG, 1) as env:
        status = Path(f"/proc/{pids(env)[0]}/status").read_text()
    (blocked,) = re.findall(r"^SigBlk:\s*(\w+)$", status, re.MULTILINE)
    assert int(blocked, 16) & 1 << (signal.SIGINT - 1)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_signal_to_the_whole_group_is_not_for_the_environments():
    with made("subprocess", LONG, 2) as env:
        assert all(os.getpgid(pid) == pid != os.getpgrp() for pid in pids(env))


def test_reset_forgets_steps_that_are_under_way():
    with made("async_subprocess", Pattern(), 3) as env:
        walk(env, Pattern(), 7)
        firsts = env.reset(0)
        assert firsts[:, 2].tolist() == [0, 0, 0]
        step = env.step(np.zeros(3, np.int64))
        assert step.obs_next[:, 2].tolist() == [1] * len(step.env_ids)


def test_a_restarted_environment_gets_a_seed_of_its_own():
    def after_restart(seed):
        with make_vec("guerdon/Target-v0", 2, backend="subprocess") as env:
            first = env.reset(seed)
            os.kill(pids(env)[1], signal.SIGKILL)
            step = env.step(np.zeros((2, 1), np.float32))
            assert step.broken.tolist() == [1]
            return first, step.obs

    first, second = after_restart(3)
    assert first[1] != second[1]
    assert first[0] != second[1]
    np.testing.assert_array_equal(after_restart(3)[1], second)


@pytest.mark.parametrize("backend", PROCESSES)
def test_an_environment_that_cannot_be_made_says_why(backend):
    with pytest.raises(EnvironmentFailedError, match=r"could not be made: Traceback(.|\n)*lengths"):
        make_vec("guerdon/Counting-v0", 2, backend=backend, kwargs={"lengths": [0]})
    assert multiprocessing.active_children() == []


def test_wait_num_is_how_many_have_to_be_ready():
    with make_vec("guerdon/Counting-v0", 3, backend="async_subprocess", wait_num=3) as env:
        env.reset(0)
        for _ in range(5):
            assert env.step(np.zeros(3, np.int64)).env_ids.tolist() == [0, 1, 2]


SCRIPTS = {
    "classes": """
from enum import Enum
import gymnasium, numpy as np
from guerdon.envs import make_vec

Color = Enum("Color", "RED GREEN")
BONUS = 2.0

class Painting(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, start):
        super().__init__()
        self.start = start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, self.start, np.float32), {}

    def step(self, act):
        info = {"color": Color.GREEN}
        return np.full(1, self.start + 1, np.float32), BONUS, True, False, info

class Doubling(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward

start = 3
env = make_vec(lambda: Doubling(Painting(start)), 2, backend="subprocess")
assert env.reset(0).tolist() == [[3], [3]]
step = env.step(np.zeros(2, np.int64))
assert step.rew.tolist() == [4, 4]
assert step.info["color"].tolist() == [Color.GREEN] * 2
env.close()
""",
    "registered": """
import gymnasium
from guerdon.envs import make_vec

class Mine(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("Inner-v0"))

gymnasium.register("Inner-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
gymnasium.register("Mine-v0", entry_point="__main__:Mine")
with make_vec("Mine-v0", 2, backend="async_subprocess") as env:
    assert env.reset(0).shape == (2, 4)
""",
    "run": """
import guerdon

guerdon.train(
    "cartpole_ppo", "env.backend=subprocess", "env.n_envs=2", "run.max_steps=8",
    "collect.n_step=4", "learn.batch_size=4", "eval.episodes=1", "run.dir=run",
)
""",
    "tutorial": """
from guerdon.compat.app_zoo.classic_control.cartpole.envs import CartPoleEnv
from guerdon.compat.nervex.worker.actor.env_manager import SubprocessEnvManager

env_manager = SubprocessEnvManager(env_fn=CartPoleEnv, env_cfg=[{} for _ in range(4)], env_num=4)
env_manager.seed(0)
env_manager.launch()
assert sorted(env_manager.next_obs) == [0, 1, 2, 3]
env_manager.close()
""",
    "tutorial's pipeline": """
from copy import deepcopy
from guerdon.compat.nervex.entry import serial_pipeline
from guerdon.compat.app_zoo.classic_control.cartpole.entry import cartpole_dqn_default_config
config = deepcopy(cartpole_dqn_default_config)
config.env.env_manager_type = "subprocess"
config.run = {"dir": "run", "max_steps": 160}
config.evaluator.eval_freq = 10_000
serial_pipeline(config, seed=0)
""",
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_needs_no_guard(tmp_path, kind):
    """Workers do not run it: it starts them once, and is said to have started once."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[kind] + "print('once')")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("once") == 1


@pytest.mark.parametrize("arguments", [["-"], ["-c", SCRIPTS["classes"]]])
def test_a_program_without_a_file_has_processes(arguments):
    subprocess.run([sys.executable, *arguments], input=SCRIPTS["classes"], text=True, check=True)


def test_a_factory_of_a_folder_that_was_added_later(tmp_path, monkeypatch):
    folder = tmp_path / "later"
    folder.mkdir()
    (folder / "later_env.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv as Later\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    with make_vec("later_env:Later", 2, backend="subprocess") as env:
        assert env.reset(0).shape == (2, 4)


def test_an_environment_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def my_env():
        with lock:
            return Looking()

    with pytest.raises(UnusableEnvironmentError, match=r"'my_env' cannot be sent.*lock.*'base'"):
        make_vec(my_env, 2, backend="subprocess")


def test_a_registered_environment_that_cannot_be_pickled_is_no_matter_for_others():
    lock = threading.Lock()
    gymnasium.register("Locked-v0", lambda: Looking() if lock else None)
    gymnasium.register("Gone-v0", "__main__:Gone")
    try:
        with make_vec("CartPole-v1", 1, backend="subprocess") as env:
            assert env.reset(0).shape == (1, 4)
        with pytest.raises(UnusableEnvironmentError, match=r"'Locked-v0' cannot be sent.*lock"):
            make_vec("Locked-v0", 1, backend="subprocess")
    finally:
        del gymnasium.registry["Locked-v0"], gymnasium.registry["Gone-v0"]


def test_threads_can_start_processes_at_once():
    """What a start changes in this process for a moment is as before in the end."""
    script, variables = sys.modules["__main__"], dict(os.environ)

    def start(_):
        for _ in range(3):
            made("subprocess", Pattern(), 2).close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(start, range(4)))
    assert sys.modules["__main__"] is script
    assert os.environ == variables


def test_an_error_of_a_factory_names_the_environment():
    def my_env():
        raise RuntimeError("no such robot")

    with pytest.raises(EnvironmentFailedError, match=r"'my_env' could not be made(.|\n)*robot"):
        make_vec(my_env, 2, backend="subprocess")


# --- what travels


@pytest.mark.parametrize("kind", [Looking, Telling])
def test_nested_observations_and_actions_travel(kind):
    with make_vec(kind, 2, backend="subprocess") as env:
        obs = env.reset(0)
        assert obs["image"].shape == (2, 3, 5)
        act = {"go": np.array([[0.25, 0.5], [1, 1]], np.float32)}
        first, second = env.step(act), env.step(act)
    assert obs["count"].tolist() == [0, 0]  # later steps change nothing
    assert first.obs["image"][:, 0, 0].tolist() == [1, 1]
    assert second.obs_next["image"][:, 2, 4].tolist() == [2, 2]
    assert second.obs["image"][:, 2, 4].tolist() == [0, 0]
    assert second.obs_next["count"].tolist() == [2, 2]
    assert second.truncated.all()
    assert first.info["action"].tolist() == [0.75, 2.0]
    assert first.info["threads"].tolist() == ["1", "1"]
    if kind is Telling:
        assert second.obs_next["text"] == ("2", "2")
        assert second.obs["text"] == ("0", "0")


# --- the end


@pytest.mark.parametrize("backend", PROCESSES)
def test_close_leaves_nothing_behind(backend):
    env = made(backend, Pattern(), 3)
    env.reset(0)
    env.step(np.zeros(3, np.int64))
    known = pids(env)
    assert all(map(is_alive, known))
    env.close()
    env.close()
    assert multiprocessing.active_children() == []
    assert not any(map(is_alive, known))
    with pytest.raises(RuntimeError, match="are closed"):
        env.reset(0)


def test_close_does_not_wait_for_one_that_hangs():
    env = failing("async_subprocess", "hang", at=1)
    env.reset(0)
    env.step(np.zeros(2, np.int64))
    known = pids(env)
    started = time.monotonic()
    env.close()
    assert time.monotonic() - started < 10
    assert not any(map(is_alive, known))


def test_a_forgotten_vector_is_closed():
    env = made("subprocess", Pattern(), 2)
    known = pids(env)
    del env
    gc.collect()
    assert wait_until(lambda: not any(map(is_alive, known)))


SCRIPT = textwrap.dedent(
    """
    import signal, sys
    import numpy as np
    from guerdon.envs import make_vec

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        settings = [{}, {}, {"fails_at": 5, "failure": "hang"}]
        env = make_vec(
            "guerdon/Counting-v0", 3, backend="async_subprocess", settings=settings, timeout=600
        )
        env.reset(0)
        n = 3
        for t in range(10**9):
            n = len(env.step(np.zeros(n, np.int64)).obs)
            if t == 50:
                pids = [env._workers[i].process.pid for i in range(3)]
                sys.stdout.write(" ".join(map(str, pids)) + "\\n")
                sys.stdout.flush()
    """
)


@pytest.fixture
def run(tmp_path):
    """A run in a session of its own, with its processes; one of them hangs."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert len(children) == 3
    assert all(map(is_alive, children))
    yield process, children
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_processes_end_when_their_parent_is_killed(run):
    process, children = run
    process.kill()
    process.wait()
    assert wait_until(lambda: not any(map(is_alive, children)))


def test_one_traceback_is_enough_for_control_c(run):
    process, children = run
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = process.communicate(timeout=30)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert wait_until(lambda: not any(map(is_alive, children)))


def test_a_process_of_an_environment_does_not_import_torch():
    code = "import sys, guerdon.envs.worker; print({'torch', 'numba'} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
