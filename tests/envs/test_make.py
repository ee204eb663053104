"""make_vec: which environments it makes, where they run, and how it refuses."""

import sys

import gymnasium
import numpy as np
import pytest

from guerdon.config import ConfigError
from guerdon.envs import (
    Counting,
    UnknownEnvironmentError,
    UnusableEnvironmentError,
    VectorEnv,
    make_vec,
)
from guerdon.envs.ids import registered_limit
from guerdon.envs.native import EnvPoolVectorEnv
from guerdon.envs.subprocess import SubprocessVectorEnv
from guerdon.envs.vector import LocalVectorEnv
from tests.envs.looking import Demanding
from tests.envs.walking import numbers

PROCESSES = ["subprocess", "async_subprocess"]
EVERYWHERE = ["base", *PROCESSES]


def kind(env: VectorEnv) -> str:
    with env:
        return type(getattr(env, "env", env)).__name__


def test_the_limit_of_an_id_is_known_with_its_module():
    assert registered_limit("CartPole-v1") == registered_limit("gymnasium:CartPole-v1") == 500
    assert registered_limit("gymnasium:Nothing-v0") is None


def test_auto_takes_the_native_vector_where_there_is_one():
    assert kind(make_vec("CartPole-v1", 2)) == "CartPoleVectorEnv"
    assert kind(make_vec("CartPole-v1", 2, kwargs={"sutton_barto_reward": True})) == (
        "CartPoleVectorEnv"
    )


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("Acrobot-v1", {}),
        ("CartPole-v1", {"settings": [{}, {"sutton_barto_reward": True}]}),
        ("CartPole-v1", {"frame_stack": 2}),
        ("CartPole-v1", {"render_mode": "rgb_array"}),
        ("CartPole-v1", {"wrappers": ["gymnasium.wrappers:TimeAwareObservation"]}),
        ("gymnasium.envs.classic_control:CartPoleEnv", {}),
        (Counting, {}),
    ],
)
def test_auto_takes_base_where_a_native_vector_cannot_do_it(env_id, arguments):
    assert kind(make_vec(env_id, 2, **arguments)) == "LocalVectorEnv"


def test_native_says_why_it_cannot():
    with pytest.raises(ValueError, match=r"'Acrobot-v1' has no native vector.*none is registered"):
        make_vec("Acrobot-v1", 2, backend="native")
    with pytest.raises(ValueError, match=r"no argument 'gravity'.*use backend 'base'"):
        make_vec("CartPole-v1", 2, backend="native", kwargs={"gravity": 3})
    with pytest.raises(ValueError, match="needs jax"):
        make_vec("phys2d/CartPole-v1", 2, backend="native")


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("base", LocalVectorEnv),
        ("subprocess", SubprocessVectorEnv),
        ("async_subprocess", SubprocessVectorEnv),
    ],
)
def test_a_vector_tells_what_it_is(backend, expected):
    with make_vec("CartPole-v1", 3, backend=backend) as env:
        assert type(env) is expected
        assert env.n_envs == 3
        assert env.spec_id == "CartPole-v1"
        assert env.synchronous == (backend != "async_subprocess")
        assert env.observation_space == gymnasium.make("CartPole-v1").observation_space
        assert env.action_space == gymnasium.spaces.Discrete(2)
        assert env.reset(0).shape == (3, 4)


def test_the_time_limit_replaces_the_registered_one():
    for backend in ("native", "base", "subprocess"):
        with make_vec("CartPole-v1", 2, backend=backend, max_episode_steps=4) as env:
            env.reset(0)
            ends = [env.step(np.array([t % 2] * 2)).truncated.tolist() for t in range(4)]
        assert ends == [[False, False]] * 3 + [[True, True]]


def test_the_time_limit_holds_for_classes_too():
    env = make_vec("guerdon.envs.counting:Counting", 1, max_episode_steps=2)
    env.reset(0)
    steps = [env.step(np.array([0])) for _ in range(2)]
    assert [bool(step.truncated[0]) for step in steps] == [False, True]
    assert [bool(step.terminated[0]) for step in steps] == [False, False]


# --- settings and factories


def seen_numbers(env: VectorEnv) -> list[int]:
    with env:
        return env.reset(0)[:, 0].tolist()


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_settings_differ_by_environment_and_come_round(backend):
    settings = [{"number": 5}, {"number": 6}]
    env = make_vec("guerdon/Counting-v0", 3, backend=backend, settings=settings)
    assert seen_numbers(env) == [5, 6, 5]


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_settings_override_the_arguments_of_all(backend):
    kwargs = {"number": 9, "lengths": [1]}
    with make_vec(
        "guerdon/Counting-v0", 2, backend=backend, kwargs=kwargs, settings=[{}, {"number": 3}]
    ) as env:
        assert env.reset(0)[:, 0].tolist() == [9, 3]
        assert env.step(np.zeros(2, np.int64)).terminated.all()


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_function_gets_its_setting_first(backend):
    def env_fn(config, lengths=(3,)):
        return Counting(number=config["n"], lengths=lengths)

    with make_vec(
        env_fn, 2, backend=backend, settings=[{"n": 4}, {"n": 7}], kwargs={"lengths": (1,)}
    ) as env:
        assert env.reset(0)[:, 0].tolist() == [4, 7]
        assert env.spec_id == "env_fn"
        assert env.step(np.zeros(2, np.int64)).terminated.any()


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_function_without_settings_gets_the_arguments(backend):
    assert seen_numbers(make_vec(lambda number=0: Counting(number), 2, backend=backend)) == [0, 0]
    env = make_vec(lambda number=0: Counting(number), 2, backend=backend, kwargs={"number": 8})
    assert seen_numbers(env) == [8, 8]


@pytest.mark.parametrize("backend", PROCESSES)
def test_ids_registered_in_this_process_are_there_in_others(backend):
    gymnasium.register("tests/Here-v0", lambda number=0: Counting(number + 100))
    try:
        env = make_vec("tests/Here-v0", 2, backend=backend, settings=numbers(2))
        assert seen_numbers(env) == [100, 101]
    finally:
        del gymnasium.registry["tests/Here-v0"]


def test_modules_are_imported_for_the_ids_they_register(tmp_path, monkeypatch):
    (tmp_path / "registers_something.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('tests/Imported-v0', 'guerdon.envs.counting:Counting')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert seen_numbers(make_vec("tests/Imported-v0", 1, imports=["registers_something"])) == [
            0
        ]
        assert seen_numbers(make_vec("registers_something:tests/Imported-v0", 1)) == [0]
    finally:
        gymnasium.registry.pop("tests/Imported-v0", None)
        sys.modules.pop("registers_something", None)


def test_more_settings_than_environments_are_refused():
    with pytest.raises(ValueError, match="3 settings for 2 environments"):
        make_vec("guerdon/Counting-v0", 2, settings=numbers(3))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_environments_of_one_vector_need_the_same_spaces(backend):
    with pytest.raises(ValueError, match="environment 1 has"):
        make_vec(
            "guerdon/Identity-v0", 2, backend=backend, settings=[{}, {"n_actions": 7}], timeout=20
        )


# --- what is refused


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("CartPole-v7", "'CartPole-v1'"),
        ("cartpole-v1", "'CartPole-v1'"),
        ("Acrobat-v1", "'Acrobot-v1'"),
        ("guerdon/Countin-v0", "'guerdon/Counting-v0'"),
    ],
)
def test_an_unknown_id_is_answered_with_the_nearest(env_id, nearest):
    with pytest.raises(UnknownEnvironmentError, match=f"no environment '{env_id}'.*{nearest}"):
        make_vec(env_id, 1)


def test_an_id_like_no_other_is_answered_with_what_to_do():
    with pytest.raises(UnknownEnvironmentError, match=r"'xyzzy'\. Your own environment is given"):
        make_vec("xyzzy", 1)


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
    ],
)
def test_an_id_of_a_missing_package_names_the_extra(env_id, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(UnknownEnvironmentError, match=rf"--editable \S+\[{extra}\]"):
        make_vec(env_id, 1)


def test_a_class_that_is_not_there_is_unknown():
    with pytest.raises(ConfigError, match="names the module 'no_such_package"):
        make_vec("no_such_package.envs:Thing", 1)
    with pytest.raises(ConfigError, match=r"module 'guerdon\.envs\.bit_flip' has no 'Thing'"):
        make_vec("guerdon.envs.bit_flip:Thing", 1)


def test_what_is_no_gymnasium_environment_is_refused():
    with pytest.raises(UnusableEnvironmentError, match="made a dict, which is not a gymnasium"):
        make_vec(dict, 1)
    with pytest.raises(UnusableEnvironmentError, match="the wrapper str made a str"):
        make_vec("CartPole-v1", 1, wrappers=[str])


def raises_something_else(number):
    return Counting(number + "1")


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize(
    ("env_id", "kwargs", "sentence"),
    [
        ("guerdon/Counting-v0", {"lenghts": [1]}, r"no argument 'lenghts': did you mean 'lengths'"),
        (Demanding, {"goal": 1, "lenghts": [1]}, r"'Demanding' has no argument 'lenghts'"),
        (Demanding, {}, r"'Demanding' cannot be made with these arguments: missing a .* 'goal'"),
        (Demanding, {"name": 1}, r"missing a .* 'goal'"),
    ],
)
def test_arguments_that_do_not_fit_are_told_in_a_sentence(backend, env_id, kwargs, sentence):
    with pytest.raises(UnusableEnvironmentError, match=sentence):
        make_vec(env_id, 2, backend=backend, kwargs=kwargs)


def test_a_setting_that_does_not_fit_is_told_in_a_sentence():
    with pytest.raises(UnusableEnvironmentError, match="too many positional arguments"):
        make_vec(lambda: Counting(), 1, settings=[1])


def test_other_errors_of_an_environment_stay_what_they_are():
    with pytest.raises(TypeError, match="unsupported operand"):
        make_vec(raises_something_else, 1, kwargs={"number": 1})


def test_arguments_that_an_environment_hands_on_are_told_in_a_sentence():
    pytest.importorskip("mujoco")
    with pytest.raises(UnusableEnvironmentError, match="'HalfCheetah-v5' has no argument 'heigth'"):
        make_vec("HalfCheetah-v5", 1, kwargs={"heigth": 3})


def test_a_package_that_an_environment_lacks_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)  # as if it were not installed
    with pytest.raises(UnusableEnvironmentError, match=r"'phys2d/CartPole-v1' cannot be made.*jax"):
        make_vec("phys2d/CartPole-v1", 1, backend="base")


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(ValueError, match=r"'env.imports' names the module 'no_such_module'"):
        make_vec("CartPole-v1", 1, imports=["no_such_module"])


@pytest.mark.parametrize(
    ("wrapper", "sentence"),
    [
        ("TimeLimit", "write 'package.module:Name'"),
        ("no_such_module:Wrapper", "names the module 'no_such_module', which cannot be imported"),
        ("gymnasium.wrappers:NoSuch", "has no 'NoSuch'"),
        ("math:pi", "'math:pi', which is a float: give a class or function"),
        ("gymnasium.wrappers:TimeLimit", "the wrapper TimeLimit .* 'max_episode_steps'"),
    ],
)
def test_a_wrapper_that_is_none_is_named(wrapper, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_vec("CartPole-v1", 1, wrappers=[wrapper])


def test_unknown_backends_and_numbers_are_refused():
    with pytest.raises(ValueError, match=r"no backend 'ray'.*async_subprocess"):
        make_vec("CartPole-v1", 1, backend="ray")
    with pytest.raises(ValueError, match="n_envs is 0"):
        make_vec("CartPole-v1", 0)


def test_base_renders():
    with make_vec("CartPole-v1", 2, render_mode="rgb_array") as env:
        env.reset(0)
        frames = env.render()
    assert len(frames) == 2
    assert frames[0].shape == (400, 600, 3)


def test_processes_do_not_render():
    with (
        make_vec("guerdon/Counting-v0", 1, backend="subprocess") as env,
        pytest.raises(NotImplementedError, match="use backend 'base'"),
    ):
        env.render()


def test_envpool_refuses_what_it_cannot_do():
    pytest.importorskip("envpool")
    for arguments in ({"settings": [{}]}, {"frame_stack": 2}, {"wrappers": [lambda env: env]}):
        with pytest.raises(ValueError, match="EnvPool has no settings"):
            make_vec("CartPole-v1", 1, backend="envpool", **arguments)
    with pytest.raises(UnknownEnvironmentError, match=r"EnvPool has no 'CartPol-v1'.*CartPole-v1"):
        make_vec("CartPol-v1", 1, backend="envpool")
    with pytest.raises(UnusableEnvironmentError, match=r"'num_threds': did you mean 'num_threads'"):
        make_vec("CartPole-v1", 1, backend="envpool", kwargs={"num_threds": 1})
    with make_vec("CartPole-v1", 1, backend="envpool") as env:
        assert type(env) is EnvPoolVectorEnv


def test_environments_that_do_not_belong_together_are_closed_again():
    closed = []

    class Odd(gymnasium.Env):
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, setting):
            self.observation_space = gymnasium.spaces.Box(-1, 1, (setting["size"],))

        def close(self):
            closed.append(self.observation_space.shape)

    with pytest.raises(ValueError, match="need the same spaces"):
        make_vec(Odd, 2, backend="base", settings=[{"size": 1}, {"size": 2}])
    assert closed == [(1,), (2,)]
