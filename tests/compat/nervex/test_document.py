"""Snippets of nerveX's tutorial, with only the root of their imports renamed."""

# ruff: noqa: B006, UP008, UP032

import copy
import importlib.util
import json
import runpy
import sys
from collections import deque, namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from easydict import EasyDict
from torch import nn

from guerdon.compat.app_zoo.classic_control.cartpole.entry import cartpole_dqn_default_config
from guerdon.compat.nervex import rl_utils
from guerdon.entry import serial_pipeline
from guerdon.policy import DQN, POLICIES
from tests.cli.tiny import guerdon

MODULE = "guerdon.compat.nervex.policy.documented_dqn"
CONFIG = EasyDict(
    env={
        "env_manager_type": "base",
        "import_names": ["app_zoo.classic_control.cartpole.envs.cartpole_env"],
        "env_type": "cartpole",
        "actor_env_num": 8,
        "evaluator_env_num": 5,
    },
    policy={
        "use_cuda": False,
        "policy_type": "dqn",
        "import_names": ["nervex.policy.dqn"],
        "on_policy": False,
        "model": {"obs_dim": 4, "action_dim": 2, "hidden_dim_list": [32, 32]},
        "learn": {
            "train_step": 3,
            "batch_size": 64,
            "learning_rate": 0.001,
            "algo": {"target_update_freq": 100, "discount_factor": 0.97, "nstep": 3},
        },
        "collect": {"traj_len": "inf", "unroll_len": 1, "algo": {"nstep": 3}},
        "command": {"eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10_000}},
    },
    replay_buffer={"meta_maxlen": 100_000},
    actor={"n_sample": 8},
    evaluator={"n_episode": 5, "stop_val": 195},
)
pytestmark = pytest.mark.filterwarnings("ignore:keys without a meaning")


class FCDQN(nn.Module):
    def __init__(self, input_dim, action_dim, hidden_dim_list=[128, 256, 256], device="cpu"):
        super(FCDQN, self).__init__()
        self.act = nn.ReLU()
        layers = []
        for dim in hidden_dim_list:
            layers.append(nn.Linear(input_dim, dim))
            layers.append(self.act)
            input_dim = dim
        self.main = nn.Sequential(*layers)
        self.action_dim = action_dim
        self.pred = nn.Linear(input_dim, action_dim)
        self.device = device

    def forward(self, x, info={}):  # noqa: ARG002
        x = x["obs"]
        x = self.main(x)
        x = self.pred(x)
        return {"logit": x}


@pytest.fixture
def module():
    """The documented module, beside the modules that it imports relatively."""
    before = dict(POLICIES._classes)
    file = Path(__file__).with_name("documented_dqn.py")
    spec = importlib.util.spec_from_file_location(MODULE, file)
    made = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    del sys.modules[MODULE]
    POLICIES._classes.clear()
    POLICIES._classes.update(before)


SCRIPT = """
from copy import deepcopy
from guerdon.compat.nervex.entry import serial_pipeline
from guerdon.compat.app_zoo.classic_control.cartpole.entry import cartpole_dqn_default_config
config = deepcopy(cartpole_dqn_default_config)
serial_pipeline(config, seed=0)
"""


def test_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cartpole_dqn.py").write_text(SCRIPT)
    run = {"dir": str(tmp_path / "run"), "max_steps": 160}
    monkeypatch.setitem(cartpole_dqn_default_config, "run", run)
    monkeypatch.setitem(cartpole_dqn_default_config.evaluator, "eval_freq", 10_000)
    config = cartpole_dqn_default_config
    save = {"type": "save_ckpt", "position": "after_run"}
    monkeypatch.setitem(config.learner, "hook", {"save": save})
    runpy.run_path("cartpole_dqn.py")
    updates = json.loads((tmp_path / "run" / "summary.json").read_text())["updates"]
    [folder] = tmp_path.glob("ckptBaseLearner*")  # of the hook and of the best evaluation
    assert f"iteration_{updates}.pth.tar" in {path.name for path in folder.iterdir()}
    assert {path.name for path in (tmp_path / "log").iterdir()} == {
        "actor", "buffer", "evaluator", "learner",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["config.yaml", "config.py"])
def test_the_command_with_a_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = copy.deepcopy(CONFIG)
    config.run = {"dir": "run", "max_steps": 80}
    plain = json.loads(json.dumps(config))
    lines = (
        "from easydict import EasyDict",
        f"cartpole_dqn_default_config = dict(**{plain})",
        "cartpole_dqn_default_config = EasyDict(cartpole_dqn_default_config)",
        "main_config = cartpole_dqn_default_config",
    )
    text = yaml.safe_dump(plain) if name.endswith("yaml") else "\n".join(lines)
    (tmp_path / name).write_text(text)
    result = guerdon("-m", "serial", "-c", name, "-s", "0")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] >= 80


def test_the_documented_function_finds_environments():
    from guerdon.compat.app_zoo.classic_control.cartpole.envs import CartPoleEnv
    from guerdon.compat.nervex.config import get_vec_env_setting as ours
    from guerdon.compat.nervex.envs import env_mapping

    def get_vec_env_setting(cfg):
        if cfg.env_type in env_mapping:
            env_fn = env_mapping[cfg.env_type]
        else:
            raise KeyError("invalid env type: {}".format(cfg.env_type))
        actor_env_cfg = env_fn.create_actor_env_cfg(cfg)
        evaluator_env_cfg = env_fn.create_evaluator_env_cfg(cfg)
        return env_fn, actor_env_cfg, evaluator_env_cfg

    cfg = EasyDict(CONFIG.env)
    env_fn, actor_env_cfg, evaluator_env_cfg = get_vec_env_setting(copy.deepcopy(cfg))
    assert (env_fn, len(actor_env_cfg), len(evaluator_env_cfg)) == (CartPoleEnv, 8, 5)
    assert [ours(copy.deepcopy(cfg))[0], len(ours(copy.deepcopy(cfg))[1])] == [CartPoleEnv, 8]


def test_an_environment_and_a_network_for_it():
    from guerdon.compat.app_zoo.classic_control.cartpole.envs import CartPoleEnv

    env = CartPoleEnv(cfg={})
    env_info = env.info()
    obs_shape = env_info.obs_space.shape
    act_shape = env_info.act_space.shape
    model = FCDQN(obs_shape, act_shape)
    logit = model({"obs": torch.as_tensor(env.reset())[None]})["logit"]
    assert logit.shape == (1, 2)
    env.close()


def test_environments_in_processes():
    from guerdon.compat.app_zoo.classic_control.cartpole.envs import CartPoleEnv
    from guerdon.compat.nervex.worker.actor.env_manager import SubprocessEnvManager

    env_manager = SubprocessEnvManager(
        env_fn=CartPoleEnv, env_cfg=[{} for _ in range(4)], env_num=4
    )
    env_manager.launch()
    observations = env_manager.next_obs
    assert {env_id: obs.shape for env_id, obs in observations.items()} == dict.fromkeys(
        range(4), (4,)
    )
    timesteps = env_manager.step({env_id: torch.tensor([0]) for env_id in observations})
    assert all(isinstance(timestep.obs, torch.Tensor) for timestep in timesteps.values())
    env_manager.close()


@pytest.mark.parametrize("em_type", ["base", "aynsc_subprocess", "subprocess"])
def test_managers_of_a_config(em_type):
    from guerdon.compat.nervex.worker.actor.env_manager import (
        BaseEnvManager,
        SubprocessEnvManager,
        SyncSubprocessEnvManager,
    )

    if em_type == "base":
        env_manager_type = BaseEnvManager
    elif em_type == "aynsc_subprocess":
        env_manager_type = SubprocessEnvManager
    elif em_type == "subprocess":
        env_manager_type = SyncSubprocessEnvManager
    assert issubclass(env_manager_type, BaseEnvManager)


def test_the_nstep_error_is_the_documented_one():
    nstep_return, nstep_return_data = rl_utils.nstep_return, rl_utils.nstep_return_data
    q_nstep_td_data = namedtuple(
        "q_nstep_td_data", ["q", "next_n_q", "action", "next_n_action", "reward", "done", "weight"]
    )

    def q_nstep_td_error(data, gamma, nstep=1, criterion=nn.MSELoss(reduction="none")):  # noqa: B008
        q, next_n_q, action, next_n_action, reward, done, weight = data
        assert len(action.shape) == 1, action.shape
        if weight is None:
            weight = torch.ones_like(action)

        batch_range = torch.arange(action.shape[0])
        q_s_a = q[batch_range, action]
        target_q_s_a = next_n_q[batch_range, next_n_action]

        target_q_s_a = nstep_return(nstep_return_data(reward, target_q_s_a, done), gamma, nstep)
        return (criterion(q_s_a, target_q_s_a.detach()) * weight).mean()

    assert rl_utils.q_nstep_td_data._fields == q_nstep_td_data._fields
    generator = torch.Generator().manual_seed(0)
    q, next_q = (torch.randn(6, 3, generator=generator) for _ in range(2))
    action, next_action = (torch.randint(3, (6,), generator=generator) for _ in range(2))
    reward, weight = torch.randn(2, 6, generator=generator), torch.rand(6, generator=generator)
    done = torch.tensor([0.0, 0, 1, 0, 1, 0])
    for weights in (None, weight):
        rows = (q, next_q, action, next_action, reward, done, weights)
        ours = rl_utils.q_nstep_td_error(rl_utils.q_nstep_td_data(*rows), 0.9, nstep=2)
        torch.testing.assert_close(ours, q_nstep_td_error(q_nstep_td_data(*rows), 0.9, nstep=2))


def test_a_buffer():
    from guerdon.compat.nervex.data import BufferManager

    cfg = {"meta_maxlen": 10}
    buffer_ = BufferManager(cfg)

    for _ in range(10):
        buffer_.push_data({"data": "placeholder"})
    data = buffer_.sample(4)
    assert [item["data"] for item in data] == ["placeholder"] * 4


@pytest.mark.parametrize(
    "section",
    [
        CONFIG.replay_buffer,
        EasyDict(
            buffer_name=["agent"],
            agent={"meta_maxlen": 100_000, "max_reuse": 100, "min_sample_ratio": 1},
        ),
    ],
)
def test_the_buffer_of_a_config(section):
    from guerdon.compat.nervex.data import BufferManager

    cfg = EasyDict(replay_buffer=section)
    replay_buffer = BufferManager(cfg.replay_buffer)
    assert replay_buffer.buffer["agent"].options.maxlen == 100_000


def test_the_policy_of_a_config():
    from guerdon.compat.nervex.policy import create_policy

    cfg = copy.deepcopy(CONFIG)
    policy = create_policy(cfg.policy)
    assert isinstance(policy, DQN)


def test_the_documented_policy_is_made_by_its_name(module):
    from guerdon.compat.nervex.policy import create_policy

    cfg = copy.deepcopy(CONFIG)
    policy = create_policy(cfg.policy)
    assert type(policy) is module.DQNPolicy
    # The line of the actor that makes a transition.
    actor = SimpleNamespace(_policy=policy.collect_mode)
    obs, timestep = torch.zeros(4), SimpleNamespace(obs=torch.ones(4), reward=1.0, done=False)
    ids, data = actor._policy.data_preprocess({0: obs})
    actor._obs_pool = {0: obs}
    actor._policy_output_pool = actor._policy.data_postprocess(
        ids, actor._policy.forward(ids, data)
    )
    transition = actor._policy.process_transition(
        actor._obs_pool[0], actor._policy_output_pool[0], timestep
    )
    assert transition.next_obs is timestep.obs
    cache = deque([transition, transition, EasyDict({**transition, "done": True})])
    samples = actor._policy.get_train_sample(cache)  # traj_len is "inf", nstep 3
    assert [sample["reward"].tolist() for sample in samples] == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]


def test_environments_of_the_caller(tmp_path):
    from guerdon.compat.app_zoo.classic_control.cartpole.envs import CartPoleEnv

    config = copy.deepcopy(CONFIG)
    del config.env, config.evaluator["stop_val"]
    config.collect = {"warmup_steps": 64}
    config.run = {"dir": str(tmp_path / "run"), "max_steps": 80}
    env_setting = CartPoleEnv, [{} for _ in range(8)], [{} for _ in range(5)]
    summary = serial_pipeline(config, seed=0, env_setting=env_setting)
    assert summary["env_steps"] >= 80


def test_the_documented_policy_is_trained(module, tmp_path):
    config = copy.deepcopy(CONFIG)
    config.run = {"dir": str(tmp_path / "run"), "max_steps": 120}
    summary = serial_pipeline(config, seed=0)
    assert summary["updates"] > 30
    assert summary["eval_return_mean"] > 0
    again = serial_pipeline(
        {**config, "run": {**config.run, "dir": str(tmp_path / "again")}},
        seed=0,
        policy_fn=module.DQNPolicy,
        model=FCDQN(4, 2),
    )
    assert again["updates"] == summary["updates"]
