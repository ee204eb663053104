"""From a config to parts: each has its own seed, and what a checkpoint needs is in the state."""

import random
from contextlib import closing
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from guerdon.collect import Collector
from guerdon.config import compose
from guerdon.data import PrioritizedReplayBuffer, Rollout
from guerdon.envs import Counting, VectorEnv, make_vec
from guerdon.policy import PPO
from guerdon.reward import register_reward_model
from guerdon.training.parts import Seeds, find_device, make_env, make_parts, rollout_steps
from guerdon.training.trainers import train_reward
from tests.collect.acting import Tracing
from tests.rounding import assert_close
from tests.training.running import CASES, Idle, config_of, leaves, same


def parts_of(case, **sections):
    return make_parts(compose(config_of(case, "unused", **sections)))


def test_every_part_has_a_seed_of_its_own():
    seeds = [Seeds.of(seed) for seed in range(50)]
    numbers = [n for each in seeds for n in (each.policy, each.collect, each.buffer, each.evaluate)]
    assert len(set(numbers)) == 200
    assert Seeds.of(7) == seeds[7]


def test_environments_are_made_as_the_section_says():
    section = compose(
        None,
        [
            "env.id=guerdon/Counting-v0", "env.n_envs=3", "env.backend=base", "policy=ppo",
            "env.kwargs={lengths: [4]}", "env.settings=[{number: 5},{number: 6}]",
            "env.eval={kwargs: {lengths: [9]}}",
        ],
    ).env  # fmt: skip
    env = make_env(section)
    assert env.reset(0)[:, 0].tolist() == [5, 6, 5]
    assert Collector(Tracing(env), env).collect(n_episode=3).lengths == [4, 4, 4]
    testing = make_env(section.for_evaluation(2))
    assert testing.n_envs == 2
    assert Collector(Tracing(testing), testing).collect(n_episode=2).lengths == [9, 9]


def test_environments_of_a_function_have_their_own_settings():
    config = compose(config_of("ppo", "unused", env={"backend": "base"}))
    setting = (lambda number: Counting(number), [7, 8], [9])
    parts = make_parts(config, env_setting=setting)
    assert parts.env.reset(0)[:, 0].tolist() == [7, 8]
    assert parts.eval_env.reset(0)[:, 0].tolist() == [9]
    assert parts.buffer.n_envs == 2


def test_a_policy_and_a_network_may_be_given():
    class Mine(PPO):
        pass

    class Small(torch.nn.Module):
        def __init__(self, *_):
            super().__init__()
            self.linear = torch.nn.Linear(4, 5)

        def forward(self, obs):
            output = self.linear(obs)
            return {"logit": output[..., :4], "value": output[..., 4]}

    config = compose(config_of("ppo", "unused"))
    parts = make_parts(config, policy_fn=Mine, model=Small)
    assert type(parts.policy) is Mine
    assert isinstance(parts.policy.model, Small)
    assert parts.collector.policy is parts.policy


def test_buffers_are_those_of_the_policy():
    assert isinstance(parts_of("dqn_prioritized_3_step").buffer, PrioritizedReplayBuffer)
    assert parts_of("sac").buffer.size == 90
    assert isinstance(parts_of("ppo").buffer, Rollout)
    assert isinstance(parts_of("ppo", collect={"n_step": None, "n_episode": 4}).buffer, Rollout)


@pytest.mark.parametrize("n_envs", [1, 3, 4])
@pytest.mark.parametrize("n_step", [5, 32])
@pytest.mark.parametrize("lengths", [[1], [1, 2], [3, 1, 1], [50]])
@pytest.mark.parametrize("backend", ["base", "next_step"])
def test_a_rollout_of_an_iteration_fits_whatever_happens_in_it(n_envs, n_step, lengths, backend):
    if backend == "base":
        env = make_vec("guerdon/Counting-v0", n_envs, backend="base", kwargs={"lengths": lengths})
    else:
        env = VectorEnv(SyncVectorEnv([partial(Counting, lengths=lengths)] * n_envs))
    config = compose(
        config_of("ppo", "unused", collect={"n_step": n_step}, learn={"batch_size": 1})
    )
    buffer = Rollout(rollout_steps(config, env), n_envs)
    collector = Collector(Tracing(env), env, buffer)
    for _ in range(6):
        collected = collector.collect(n_step=n_step)
        assert len(buffer) == collected.n_step >= n_step
        buffer.reset()


def test_info_is_stored_where_the_reward_needs_it():
    function = {"type": "function", "target": "tests.training.test_parts:info_reward"}
    reward = {"terms": {"paid": function | {"fields": ["info"]}}}
    assert parts_of("ppo", reward=reward).collector.store_info
    assert not parts_of("ppo").collector.store_info


def info_reward(batch):
    return batch.rew


@pytest.mark.parametrize("case", CASES)
def test_other_parts_go_on_exactly_where_the_state_was_taken(case):
    def advance(parts):
        parts.collector.collect(n_step=60)
        train_reward(parts.reward, parts.collector, 0)
        for _ in range(2):
            parts.policy.update(16, parts.buffer, parts.reward)
        if parts.policy.on_policy:
            parts.buffer.reset()

    first = parts_of(case)
    advance(first)
    first.clean_point()
    state = first.training_state()
    second = make_parts(compose(config_of(case, "unused"), ["seed=77"]))
    advance(second)
    second.load_training_state(state)
    for parts in (first, second):
        advance(parts)
        parts.clean_point()
    one, other = leaves(first.training_state()), leaves(second.training_state())
    assert one.keys() == other.keys()
    assert [path for path in one if not same(one[path], other[path])] == []
    assert any(not same(one[path], before) for path, before in leaves(state).items())


def test_a_clean_point_ends_every_episode():
    parts = parts_of("ppo_normalized")
    parts.collector.collect(n_step=30)
    parts.clean_point()
    parts.buffer.reset()
    parts.collector.collect(n_step=3)
    rows, _ = parts.buffer.rollout(("obs",))
    assert rows.first[0].all()
    assert (np.abs(rows.obs[0]) <= 0.05).all()  # so CartPole begins


def test_closing_closes_both_environments():
    sections = {"env": {"backend": "subprocess", "n_envs": 1}, "eval": {"n_envs": 1}}
    parts = parts_of("ppo", **sections)
    parts.close()
    for env in (parts.env, parts.eval_env):
        with pytest.raises(RuntimeError, match="closed"):
            env.reset(0)


def test_a_device_that_is_not_there_is_refused():
    assert find_device("cpu") == "cpu"
    assert torch.zeros(1, device=find_device("auto")) == 0
    if not torch.cuda.is_available():
        assert find_device("auto") in ("cpu", "mps")
        with pytest.raises(ValueError, match="no such device: use 'cpu'"):
            find_device("cuda:1")


def test_a_device_has_to_be_one_of_those_there(monkeypatch):
    found = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert [find_device(name) for name in ("cuda", "cuda:1", "cpu")] == ["cuda", "cuda:1", "cpu"]
    with pytest.raises(ValueError, match=r"run.device is .cuda:7., but torch finds no such device"):
        find_device("cuda:7")


def test_a_reward_that_nobody_would_train_is_refused():
    changes = ["env=cartpole", "policy=ppo", "reward=rnd", "reward.cotrain=false"]
    with pytest.raises(ValueError, match="the reward 'rnd' would never be trained"):
        make_parts(compose(None, changes))
    with make_parts(compose(None, [*changes, "reward.pretrain=true"])).env:
        pass


def test_a_bonus_with_a_value_of_its_own_is_not_counted_twice():
    changes = ["env=cartpole", "policy=ppo", "reward=rnd", "policy.intrinsic={terms: [rnd]}"]
    with pytest.raises(ValueError, match="'rnd' has a value of its own"):
        make_parts(compose(None, changes))
    with pytest.raises(ValueError, match="names 'icm', which the reward has not"):
        make_parts(compose(None, [*changes[:3], "policy.intrinsic={terms: [icm]}"]))


def test_a_policy_can_normalise_by_the_demonstrations_and_stays_so():
    changes = ["cartpole_fixed_ppo_gail", "env.n_envs=2"]
    parts = make_parts(compose(changes[0], changes[1:]))
    seen = parts.reward.models[0].demonstrations.transitions().obs
    normalizer = parts.policy.model.normalizer
    assert_close(normalizer.mean, seen.mean(0, dtype=float))
    parts.policy.update_normalizer(parts.policy.model, torch.ones(3, 4))
    assert_close(normalizer.mean, seen.mean(0, dtype=float))
    parts.close()
    with pytest.raises(ValueError, match="the reward has none: set it to true or false"):
        make_parts(
            compose(
                None, ["env=cartpole", "policy=ppo", "policy.model.normalize_obs=demonstrations"]
            )
        )


def test_the_demonstrations_of_an_ensemble_normalise_too():
    member = {"type": "gail", "expert_data_path": "zoo:cartpole_fixed"}
    sections = {
        "env": {"id": "guerdon/CartPoleFixed-v0"},
        "policy": {"type": "ppo", "model": {"normalize_obs": "demonstrations"}},
        "reward": {"type": "ensemble", "of": member, "members": 2},
    }
    with closing(parts_of("ppo", **sections)) as parts:
        seen = parts.reward.models[0].members[1].demonstrations.transitions().obs
        found = parts.policy.model.normalizer.mean
        assert_close(found, seen.mean(0, dtype=float))


class Careless(Idle):
    """Draws when it is made from what all share."""

    def __init__(self, config, device, tb_logger):
        super().__init__(config, device, tb_logger)
        self.drawn = [random.random(), np.random.rand(), torch.rand(1).item()]  # noqa: NPY002


def test_what_a_model_draws_when_it_is_made_depends_on_the_seed_alone():
    register_reward_model("test_careless", Careless)
    drawn = []
    for _ in range(2):
        with closing(parts_of("ppo", reward={"type": "test_careless"})) as parts:
            drawn.append(parts.reward.models[0].model.drawn)
    assert drawn[0] != [random.random(), np.random.rand(), torch.rand(1).item()]  # noqa: NPY002
    assert drawn[0] == drawn[1]
