"""Environments that return something wrong: the error names them, the step and what it is."""

import numpy as np
import pytest

from guerdon.collect import Collector
from guerdon.data.rollout import Rollout
from guerdon.envs import EnvironmentFailedError, VectorEnv, make_vec
from guerdon.envs.checks import InvalidStepError
from guerdon.envs.ids import UnusableEnvironmentError
from tests.collect.breaking import (
    BAD,
    EMPTY,
    FAILURES,
    RESETS,
    SPACES,
    STARTS,
    STEPS,
    VECTORS,
    Breaking,
    BreakingVector,
    N,
    OldReset,
    Spaces,
)

BACKENDS = ["base", "subprocess"]


def error_of(env, n_step=60):
    """The error of collecting with random actions, of which nothing wrong was stored."""
    rollout = Rollout(n_step, env.n_envs)
    with env, pytest.raises(InvalidStepError) as caught:
        Collector(None, env, rollout).collect(n_step=n_step, random=True)
    if len(rollout):
        rows, _ = rollout.rollout()
        assert np.isfinite(rows.rew).all()
    return str(caught.value)


def made(backend, fault, method, space="box", **more):
    """Three environments, of which the second is broken."""
    settings = [{"space": space}, {"fault": fault, "method": method, "space": space, **more}]
    settings.append(settings[0])
    return make_vec(
        "tests.collect.breaking:Breaking", N, backend=backend, settings=settings, max_restarts=0
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", STEPS)
def test_a_wrong_step_is_named(backend, fault):
    space, _, reason = STEPS[fault]
    error = error_of(made(backend, fault, "step", space))
    name = f"environment 1 of 'tests.collect.breaking:Breaking', at step {BAD} of its episode: "
    assert error.startswith(name)
    assert reason in error


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("fault", RESETS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_reset_is_named(backend, fault, start):
    error = error_of(made(backend, fault, "reset", resets=STARTS[start]))
    name = "environment 1 of 'tests.collect.breaking:Breaking', at the start of an episode: "
    assert error.startswith(name)
    assert RESETS[fault][1] in error


@pytest.mark.parametrize("fault", VECTORS)
def test_a_wrong_step_of_a_vector_environment_is_named(fault):
    _, env, reason = VECTORS[fault]
    error = error_of(VectorEnv(BreakingVector(fault), "Breaking-v0"))
    name = "the vector environment" if env is None else f"environment {env}"
    assert error.startswith(f"{name} of 'Breaking-v0', at step {BAD} of its episode: ")
    assert reason in error


def test_a_reset_of_an_older_interface_is_named():
    error = error_of(make_vec(OldReset, 2))
    assert "environment 0 of 'OldReset', at the start of an episode: reset() does not take" in error


def test_a_wrong_step_under_a_wrapper_is_named():
    env = make_vec(lambda: Breaking("four values"), 1, max_episode_steps=100)  # TimeLimit unpacks
    assert "at step 3 of its episode: step() does not return (observation, reward" in error_of(env)


def test_only_an_asynchronous_environment_that_is_wrong_is_named():
    env = made("async_subprocess", "nan in the observation", "step")
    # So many that the others cannot collect them before the second one steps.
    assert "environment 1 of" in error_of(env, n_step=100_000)


@pytest.mark.parametrize("space", ["box", "double", "image", "discrete", "dict", "tuple"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_right_environments_are_not_refused(backend, space):
    with made(backend, None, "step", space) as env:
        assert Collector(None, env).collect(n_step=60, random=True).n_step == 60


@pytest.mark.parametrize(
    "step",
    [
        {"rew": np.array(1.0)},
        {"rew": np.float32(1)},
        {"rew": True},
        {"rew": 1e15},
        {"terminated": np.bool_(False), "truncated": 0},
        {"obs": [0, 0, 0, 0]},
        {"obs": np.full(4, 1e18)},
        {"info": {"success": None}},
        {"info": {"success": np.float32(0)}},
    ],
)
def test_what_can_be_learned_from_is_not_refused(step, monkeypatch):
    monkeypatch.setitem(STEPS, "right", ("box", step, ""))
    with make_vec(lambda: Breaking("right"), 1) as env:
        assert Collector(None, env).collect(n_step=10, random=True).n_step == 10


def test_an_error_of_the_environment_itself_is_not_explained():
    class Unpacking(Breaking):
        def step(self, action):  # noqa: ARG002
            first, second = (1,)
            return first, second

    with make_vec(Unpacking, 1) as env, pytest.raises(ValueError, match="not enough") as caught:
        Collector(None, env).collect(n_step=1, random=True)
    assert not isinstance(caught.value, InvalidStepError)


def failing(backend, failure, method, max_restarts=1):
    kwargs = {"failure": failure, "method": method}
    name = "tests.collect.breaking:Failing"
    return make_vec(name, 2, backend=backend, kwargs=kwargs, max_restarts=max_restarts)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("method", ["step", "reset"])
def test_a_method_that_cannot_go_on_is_named(method, failure):
    error = error_of(failing("base", failure, method))
    where = {"step": "at step 1 of its episode", "reset": "at the start of an episode"}[method]
    name = f"environment 0 of 'tests.collect.breaking:Failing', {where}: {method}() fails: "
    assert error.startswith(name)
    assert FAILURES[failure][1] in error
    assert "breaking.py:" in error
    assert "\n" not in error


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("method", ["step", "reset"])
def test_in_a_process_it_is_tried_again(method, failure):
    with (
        failing("subprocess", failure, method) as env,
        pytest.raises(EnvironmentFailedError) as caught,
    ):
        Collector(None, env).collect(n_step=60, random=True)
    error = str(caught.value)
    assert " of 'tests.collect.breaking:Failing' failed, and all 1 restarts are used up" in error
    assert f"last error: {method}() fails: " in error
    assert FAILURES[failure][1] in error
    assert "\n" not in error


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_environment_that_cannot_be_made_is_named(backend, failure):
    with pytest.raises(UnusableEnvironmentError) as caught:
        failing(backend, failure, "__init__")
    assert str(caught.value).startswith("'tests.collect.breaking:Failing' cannot be made: ")
    assert FAILURES[failure][1] in str(caught.value)


@pytest.mark.parametrize("space", EMPTY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_observations_without_numbers_are_refused(backend, space):
    kwargs = {"observation_space": EMPTY[space][0], "action_space": SPACES["discrete"]}
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_vec("tests.collect.breaking:Spaces", 2, backend=backend, kwargs=kwargs)
    error = str(caught.value)
    assert error.startswith(f"'tests.collect.breaking:Spaces' cannot be used: {EMPTY[space][1]}")
    assert error.endswith("which has no numbers: give it at least one, such as a constant 0")


@pytest.mark.parametrize("space", EMPTY)
def test_actions_without_numbers_are_refused(space):
    spaces = {"observation_space": SPACES["box"], "action_space": EMPTY[space][0]}
    with pytest.raises(UnusableEnvironmentError, match=r"its action_space.* has no numbers"):
        make_vec(lambda: Spaces(**spaces), 1)


def test_a_space_that_cannot_be_read_is_named():
    class Lost(Spaces):
        @property
        def observation_space(self):
            raise FileNotFoundError(2, "No such file or directory", "lost.bin")

        @observation_space.setter
        def observation_space(self, _):
            pass

    with pytest.raises(UnusableEnvironmentError, match=r"cannot be made: FileNotFoundError.*lost"):
        make_vec(lambda: Lost(SPACES["box"], SPACES["discrete"]), 1)


@pytest.mark.parametrize("space", ["observation_space", "action_space"])
def test_a_missing_space_is_named(space):
    given = {"observation_space": SPACES["box"], "action_space": SPACES["discrete"], space: None}
    with pytest.raises(UnusableEnvironmentError, match=f"its {space} is None, not a gymnasium.S"):
        make_vec(lambda: Spaces(**given), 1)
