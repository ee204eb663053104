"""nerveX's registry of policies, and the modes of a policy."""

from collections import deque

import numpy as np
import pytest
import torch
from easydict import EasyDict
from gymnasium import spaces

from guerdon.compat.nervex.gym_adapter import BaseEnvTimestep
from guerdon.compat.nervex.policy import (
    CommonPolicy,
    Policy,
    create_policy,
    register_policy,
)
from guerdon.compat.nervex.policy.base_policy import Policy as SamePolicy
from guerdon.policy import DDPG, DQN, POLICIES

pytestmark = pytest.mark.filterwarnings("ignore:keys without a meaning")
CARTPOLE = {
    "use_cuda": False,
    "policy_type": "dqn",
    "import_names": ["nervex.policy.dqn"],
    "on_policy": False,
    "model": {"obs_dim": 4, "action_dim": 2, "hidden_dim_list": [16]},
    "learn": {
        "train_step": 3,
        "batch_size": 64,
        "learning_rate": 0.001,
        "algo": {"target_update_freq": 100, "discount_factor": 0.97, "nstep": 1},
    },
    "collect": {"traj_len": 1, "unroll_len": 1, "algo": {"nstep": 1}},
    "command": {"eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10_000}},
}


@pytest.fixture
def registry():
    before = dict(POLICIES._classes)
    yield POLICIES
    POLICIES._classes.clear()
    POLICIES._classes.update(before)


class Values(CommonPolicy):
    """Returns what it is asked to learn from."""

    def _forward_learn(self, data):
        return data


def test_policies_of_configs():
    policy = create_policy(EasyDict(CARTPOLE))
    assert type(policy) is DQN
    assert (policy.config.gamma, policy.config.learning_rate) == (0.97, 0.001)
    assert policy.predict(np.zeros(4)) in (0, 1)
    images = {**CARTPOLE, "model": {"obs_dim": [4, 84, 84], "action_dim": 6}}
    assert create_policy(images).observation_space.shape == (4, 84, 84)


@pytest.mark.usefixtures("registry")
def test_policies_of_continuous_actions():
    sizes = {"obs_dim": 3, "action_dim": 2}
    policy = create_policy({"policy_type": "ddpg", "model": sizes})
    assert type(policy) is DDPG
    assert policy.predict(np.zeros(3)).shape == (2,)
    register_policy("values", Values)
    policy = create_policy({"policy_type": "values", "model": {**sizes, "continous": True}})
    assert policy.predict(np.zeros(3)).shape == (2,)


def test_a_policy_of_ones_own_replaces_one_of_the_same_name(registry):
    register_policy("dqn", Values)
    assert registry.get("dqn") is Values
    policy = create_policy({**CARTPOLE, "model": {"obs_dim": 4, "action_dim": 2}})
    assert type(policy) is Values
    assert policy._cfg.learn.algo.discount_factor == 0.97
    assert Policy is SamePolicy is CommonPolicy


@pytest.mark.usefixtures("registry")
def test_a_model_of_ones_own():
    register_policy("values", Values)
    model = torch.nn.Linear(4, 2)
    policy = create_policy({**CARTPOLE, "policy_type": "values"}, model=model)
    assert policy._model is model


def test_sizes_have_to_be_given():
    with pytest.raises(ValueError, match=r"'policy\.model\.obs_dim' is missing"):
        create_policy({"policy_type": "dqn"})


@pytest.mark.usefixtures("registry")
def test_the_modes_of_a_policy():
    register_policy("values", Values)
    policy = create_policy(
        {**CARTPOLE, "policy_type": "values", "model": {"obs_dim": 4, "action_dim": 2}}
    )
    collect = policy.collect_mode
    observations = {3: torch.zeros(4), 7: torch.ones(4)}
    ids, data = collect.data_preprocess(observations)
    assert ids == [3, 7]
    assert data["obs"].shape == (2, 4)
    outputs = collect.data_postprocess(ids, collect.forward(ids, data))
    assert outputs.keys() == {3, 7}
    timestep = BaseEnvTimestep(torch.ones(4), torch.tensor([1.0]), False, {})
    transition = collect.process_transition(observations[3], outputs[3], timestep)
    assert transition["next_obs"] is timestep.obs
    (sample,) = collect.get_train_sample(deque([transition]))
    learn = policy.learn_mode
    learned = learn.forward(learn.data_preprocess([sample] * 5))
    assert learned["obs"].shape == (5, 4)
    assert learned["weight"] is None
    learn.reset()
    collect.reset([3])
    assert learn.state_dict_handle().keys() == {"model", "optimizer"}
    assert "Values" in learn.info()
    evaluation = policy.eval_mode
    assert evaluation.forward(ids, data)["action"].shape == (2,)
    evaluation.reset()
    assert policy.command_mode.get_setting_collect({"learner_step": 0}) == {}


@pytest.mark.usefixtures("registry")
def test_settings():
    register_policy("values", Values)
    policy = create_policy(
        {**CARTPOLE, "policy_type": "values", "model": {"obs_dim": 4, "action_dim": 2}}
    )
    policy._collect_setting_set = {"eps"}
    policy.collect_mode.set_setting("collect", {"eps": 0.25})
    assert policy._eps == 0.25
    with pytest.raises(ValueError, match="'beta' is not in _collect_setting_set"):
        policy.set_setting("collect", {"beta": 1})


def test_samples_may_be_collated_by_the_policy():
    class Doubling(CommonPolicy):
        def _data_preprocess_learn(self, data):
            return {"number": len(data), "sum": sum(row["reward"] for row in data)}

        def _forward_learn(self, data):
            return data

    policy = Doubling({"type": "doubling"}, spaces.Box(-1, 1, (1,)), spaces.Discrete(2))
    buffer = policy.make_buffer(8, 1, 0)
    for _ in range(8):
        buffer.add(
            obs=np.zeros(1, np.float32), act=0, rew=2.0, terminated=False, truncated=False,
            obs_next=np.zeros(1, np.float32),
        )  # fmt: skip
    metrics = policy.update(4, buffer)
    assert (metrics["train/number"], float(metrics["train/sum"])) == (4, 8.0)


def test_what_samples_of_a_buffer_become():
    section = {"type": "values", "use_priority": True}
    for config, weight in ((section, [0.5, 1.0]), ({"type": "values"}, None)):
        policy = Values(config, spaces.Box(-1, 1, (1,)), spaces.Discrete(2))
        rows = [{"obs": torch.zeros(1), "done": n > 0, "IS": 0.5 + n / 2} for n in range(2)]
        data = policy.learn_mode.data_preprocess(rows)
        assert (1 - data["done"]).tolist() == [1.0, 0.0]
        assert weight == (data["weight"] if weight is None else data["weight"].tolist())
