"""Config files of nerveX and DI-engine as Python code, and their own environments."""

import sys
from copy import deepcopy

import numpy as np
import pytest

from guerdon.compat.app_zoo.classic_control.cartpole.entry import cartpole_dqn_default_config
from guerdon.compat.app_zoo.classic_control.cartpole.envs import CartPoleEnv
from guerdon.compat.keys import Report
from guerdon.compat.nervex.config import Config, get_vec_env_setting
from guerdon.compat.nervex.entry import serial_pipeline
from guerdon.compat.nervex.envs import eleven_actions, one_for_success
from guerdon.config import ConfigError
from guerdon.entry import compose
from guerdon.envs import make_vec
from tests.cli.tiny import guerdon

pytestmark = pytest.mark.filterwarnings("ignore:keys without a meaning in guerdon")

FILE = """
import torch.nn as nn
from easydict import EasyDict
from ding.config import compile_config
from ding.model.template import VAC
from dizoo.classic_control.cartpole.envs.cartpole_env import CartPoleEnv
from nervex.policy.dqn import DQNPolicy


class Network(VAC):
    pass


main_config = EasyDict(dict(
    env=dict(collector_env_num=2, stop_value=195),
    policy=dict(
        model=dict(encoder_hidden_size_list=[8], activation=nn.Tanh()),
        learn=dict(epoch_per_collect=2, batch_size=8), collect=dict(n_sample=16),
    ),
))
create_config = EasyDict(dict(
    env=dict(type='cartpole', import_names=['dizoo.classic_control.cartpole.envs']),
    env_manager=dict(type='base'),
    policy=dict(type='ppo', import_names=['ding.policy.ppo']),
))
"""


def test_a_file_may_import_easydict_and_its_own_project(tmp_path):
    file = tmp_path / "mine_config.py"
    file.write_text(FILE)
    report = Report()
    config = compose(file, report=report)
    assert (config.env.id, config.policy["model"]["activation"]) == ("CartPole-v1", "tanh")
    missing = {name for name, reason in report.dropped.items() if reason == "not in guerdon"}
    assert missing == {
        "ding.config.compile_config",
        "ding.model.template.VAC",
        "nervex.policy.dqn.DQNPolicy",
    }
    assert not [name for name in sys.modules if name.partition(".")[0] in ("ding", "dizoo")]


def test_a_checkout_in_the_current_folder_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for package in ("nervex", "dizoo"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("import a_package_that_is_not_installed\n")
    (tmp_path / "dizoo" / "__init__.py").write_text("")
    (tmp_path / "dizoo" / "base_config.py").write_text("n_sample = 96\n")
    file = tmp_path / "mine_config.py"
    file.write_text(
        "from nervex.policy import Policy\nfrom dizoo.base_config import n_sample\n"
        "main_config = dict(env=dict(env_type='cartpole', import_names=['dizoo.envs']),\n"
        "    policy=dict(policy_type='ppo', import_names=['nervex.policy.ppo']),\n"
        "    actor=dict(n_sample=n_sample))\n"
    )
    assert compose(file).collect.n_step == 96


def test_explain_shows_what_became_of_each_key(tmp_path):
    file = tmp_path / "mine_config.py"
    file.write_text(FILE)
    result = guerdon("explain", file)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"env{chr(215)}1 → GAE\n")
    assert "env.stop_value → eval.target_return=195\n" in result.stdout
    assert "policy.learn.epoch_per_collect → learn.repeat=2\n" in result.stdout


def test_a_parallel_config_is_refused(tmp_path):
    file = tmp_path / "parallel_config.py"
    file.write_text(
        "from nervex.config import parallel_transform\nmain_config = parallel_transform({})\n"
    )
    with pytest.raises(ConfigError) as error:
        compose(file)
    assert str(error.value) == (
        "guerdon reads no parallel config: train a serial one with -m parallel"
    )


def test_a_file_is_read_as_a_dictionary(tmp_path):
    file = tmp_path / "mine_config.py"
    file.write_text(FILE)
    found = Config.file_to_dict(str(file)).cfg_dict
    assert found["main_config"].policy.learn.batch_size == 8
    assert found["create_config"].policy.type == "ppo"


# --- environments


def test_an_environment_in_nervexs_form():
    env = CartPoleEnv(cfg={})
    info = env.info()
    assert (info.obs_space.shape, info.act_space.shape) == (4, 2)
    env.seed(3)
    first = env.reset()
    assert (first.shape, first.dtype) == ((4,), np.float32)
    steps, done = 0, False
    while not done:
        obs, reward, done, information = env.step(np.array([steps % 2]))
        steps += 1
        assert (obs.shape, reward.shape) == ((4,), (1,))
    assert information["final_eval_reward"] == steps
    env.close()


def test_the_documented_setting_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = deepcopy(cartpole_dqn_default_config)
    setting = get_vec_env_setting(deepcopy(config.env))
    assert (setting[0], len(setting[1]), len(setting[2])) == (CartPoleEnv, 8, 5)
    summary = serial_pipeline(config, seed=0, env_setting=setting, max_env_step=160)
    assert summary["env_steps"] == 160
    assert summary["episodes"] > 0


def test_an_unknown_environment_is_named():
    with pytest.raises(ConfigError, match="there is no environment 'cartpol': did you mean"):
        get_vec_env_setting({"env_type": "cartpol"})


OWN = """
import numpy as np
from guerdon.compat.nervex.config import register_env
from guerdon.compat.nervex.envs import BaseEnv, BaseEnvInfo, BaseEnvTimestep, EnvElementInfo


class Count(BaseEnv):
    def __init__(self, cfg):
        self.length = cfg.length

    def seed(self, seed):
        pass

    def reset(self):
        self.at = 0
        return np.zeros(1, np.float32)

    def step(self, action):
        self.at += 1
        obs = np.full(1, self.at, np.float32)
        return BaseEnvTimestep(obs, np.array([1.0]), self.at == self.length, {})

    def info(self):
        bounds = {"min": 0.0, "max": 99.0, "dtype": np.float32}
        whole = EnvElementInfo((2,), {"min": 0, "max": 2})
        return BaseEnvInfo(1, EnvElementInfo((1,), bounds), whole, None)

    def close(self):
        pass


register_env("count", Count)
"""


@pytest.mark.parametrize("backend", ["base", "subprocess"])
def test_a_class_of_ones_own_is_found_by_its_type(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting_env.py").write_text(OWN)
    config = {
        "env": {
            "env_type": "count", "import_names": ["counting_env.py"], "length": 7,
            "env_manager_type": backend, "actor_env_num": 2,
        },
        "policy": {"policy_type": "ppo", "learn": {"batch_size": 14}, "collect": {"n_sample": 28}},
        "evaluator": {"n_episode": 2},
    }  # fmt: skip
    summary = serial_pipeline(config, max_env_step=28)
    assert (summary["env_steps"], summary["eval_return_mean"]) == (28, 7)
    assert guerdon("eval", summary["run_dir"], "--episodes", 1).exit_code == 0


def test_wrappers_for_environments_that_differ():
    flip = make_vec("guerdon/BitFlip-v0", 1, kwargs={"n_bits": 1}, wrappers=[one_for_success])
    flip.reset()
    step = flip.step(np.array([0]))
    assert (step.rew[0], step.terminated[0]) == (1.0, True)
    flip.close()
    swing = make_vec("Pendulum-v1", 1, wrappers=[eleven_actions])
    assert swing.action_space.n == 11
    swing.reset(seed=0)
    swing.step(np.array([10]))
    swing.close()
