"""Policies in the tutorial's style: what they are given, and that rewards are resolved on read."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from guerdon.collect import Collector
from guerdon.compat.nervex.armor import Armor
from guerdon.compat.nervex.armor_plugins import Plugin
from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.compat.nervex.model import FCDiscreteNet
from guerdon.compat.nervex.policy import CommonPolicy
from guerdon.compat.nervex.rl_utils import OUNoise
from guerdon.data import Batch, ReplayBuffer
from guerdon.envs import make_vec
from guerdon.nn import ActorCritic, ModelConfig
from guerdon.reward import make_reward
from guerdon.training.evaluation import evaluate

EXAMPLE = Path(__file__).parents[3] / "examples" / "tutorial_dqn.py"
NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)
TWO = spaces.Discrete(2)


class Recorder(CommonPolicy):
    """Remembers what it was asked to learn from."""

    def _init_learn(self):
        self.seen = []

    def _forward_learn(self, data):
        self.seen.append(data)
        return {"total_loss": 1.5, "note": "not a number", "size": torch.tensor(2.0)}


class Advantages(CommonPolicy):
    """On-policy, with the value that was predicted when it acted."""

    on_policy = True

    def _create_model_from_cfg(self, cfg, model_type=None):  # noqa: ARG002
        return ActorCritic(self.observation_space, self.action_space, ModelConfig())

    def _init_learn(self):
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)
        self.seen = []

    def _process_transition(self, obs, armor_output, timestep):
        transition = super()._process_transition(obs, armor_output, timestep)
        return {**transition, "value": armor_output["value"]}

    def _get_train_sample(self, traj_cache):
        data = self._adder.get_traj(traj_cache, self._traj_len)
        with torch.no_grad():
            last = self._model(data[-1]["next_obs"][None])["value"][0]
        return self._adder.get_gae(data, last, gamma=0.5, gae_lambda=0.5)

    def _forward_learn(self, data):
        self.seen.append(data)
        logit = self._model(data["obs"])["logit"].log_softmax(-1)
        loss = -(logit.gather(-1, data["action"][:, None])[:, 0] * data["adv"]).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"total_loss": loss.item()}


@pytest.fixture(scope="module")
def tutorial():
    return runpy.run_path(str(EXAMPLE))


def tutorial_policy(tutorial, nstep=1, seed=0, **options):
    section = {**tutorial["cartpole_dqn_default_config"]["policy"], **options}
    section["learn"] = {"learning_rate": 1e-3, "algo": {**section["learn"]["algo"], "nstep": nstep}}
    section["collect"] = {"traj_len": 1, "unroll_len": 1, "algo": {"nstep": nstep}}
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return tutorial["DQNPolicy"](section, space, TWO, seed=seed)


def episodes(buffer, *ends, rew=lambda t: 10.0**t, size=1):
    """Adds episodes (length, terminated) in which obs counts on, each from another hundred."""
    for number, (length, terminated) in enumerate(ends):
        for t in range(length):
            obs = np.full((1, size), 100.0 * number + t, np.float32)
            over = np.array([t == length - 1])
            buffer.add(
                env_ids=[0], obs=obs, act=np.array([t % 2]), rew=np.array([rew(t)]),
                terminated=over & terminated, truncated=over & (not terminated), obs_next=obs + 1,
            )  # fmt: skip
    return buffer


def recorder(nstep=1, **options):
    collect = {"algo": {"nstep": nstep}, **options}
    return Recorder({"type": "recorder", "collect": collect}, NUMBER, TWO)


# --- what `_forward_learn` is given


def test_a_sample_is_a_transition_as_the_buffer_has_it():
    policy, buffer = recorder(), episodes(ReplayBuffer(50, seed=0), (3, True), (2, False))
    metrics = policy.update(64, buffer)
    (data,) = policy.seen
    rows = zip(*(data[key].flatten().tolist() for key in data if key != "weight"), strict=True)
    # obs, next_obs, action, reward, done: a truncation is not done
    assert set(rows) == {
        (0, 1, 0, 1, False),
        (1, 2, 1, 10, False),
        (2, 3, 0, 100, True),
        (100, 101, 0, 1, False),
        (101, 102, 1, 10, False),
    }
    assert data["obs"].shape == (64, 1)
    assert data["reward"].shape == (64,)
    assert data["weight"] is None
    assert metrics == {"train/total_loss": 1.5, "train/size": torch.tensor(2.0)}
    assert policy._cfg.learn.batch_size == 64


def test_every_drawn_transition_has_its_n_step_return():
    policy, buffer = recorder(nstep=3), episodes(ReplayBuffer(50, seed=0), (5, True), (4, False))
    policy.update(200, buffer)
    (data,) = policy.seen
    assert data["reward"].shape == (200, 3)
    rows = zip(
        data["obs"][:, 0].tolist(),
        map(tuple, data["reward"].tolist()),
        data["next_obs"][:, 0].tolist(),
        data["done"].tolist(),
        strict=True,
    )
    assert set(rows) == {
        (0, (1, 10, 100), 3, False),
        (1, (10, 100, 1000), 4, False),
        (2, (100, 1000, 10000), 5, True),
        (3, (1000, 10000, 0), 5, True),
        (4, (10000, 0, 0), 5, True),
        (100, (1, 10, 100), 103, False),
        (101, (10, 100, 1000), 104, False),  # the other two break off
    }


def test_transitions_near_an_end_are_not_drawn_more_often():
    policy, buffer = recorder(nstep=3), episodes(ReplayBuffer(50, seed=0), (5, True))
    policy.update(10_000, buffer)
    counts = torch.bincount(policy.seen[0]["obs"][:, 0].long())
    assert counts.tolist() == pytest.approx([2000] * 5, rel=0.1)


def test_unrolled_samples_have_time_first():
    policy = recorder(nstep=2, unroll_len=3)
    policy.update(32, episodes(ReplayBuffer(50, seed=0), (8, True)))
    (data,) = policy.seen
    assert data["obs"].shape == (3, 32, 1)
    assert data["reward"].shape == (3, 32, 2)
    steps = data["obs"][1:] - data["obs"][:-1]
    assert (steps[data["mask"][1:]] == 1).all()
    assert not data["mask"].all()  # those that begin near the end are too short


def test_observations_may_be_dictionaries():
    class Mapped(Recorder):
        def _create_model_from_cfg(self, cfg, model_type=None):  # noqa: ARG002
            return nn.Identity()

    space = spaces.Dict({"a": NUMBER, "b": NUMBER})
    policy = Mapped({"type": "mapped"}, space, TWO)
    buffer = ReplayBuffer(10, seed=0)
    for t in range(4):
        obs = {"a": np.full((1, 1), t, np.float32), "b": np.full((1, 1), -t, np.float32)}
        buffer.add(
            env_ids=[0], obs=obs, obs_next=obs, act=np.array([0]), rew=np.array([1.0]),
            terminated=np.array([False]), truncated=np.array([False]),
        )  # fmt: skip
    policy.update(8, buffer)
    obs = policy.seen[0]["obs"]
    assert obs["a"].shape == (8, 1)
    assert torch.equal(obs["a"], -obs["b"])


def test_an_on_policy_class_sees_every_transition_of_the_rollout_once_an_epoch():
    env = make_vec("CartPole-v1", 2)
    policy = Advantages({"type": "advantages"}, env.observation_space, env.action_space)
    buffer = policy.make_buffer(400, 2, 0)
    collector = Collector(policy, env, buffer, seed=0)
    collector.collect(n_step=100)
    policy.update(32, buffer, repeat=2)
    env.close()
    shown = torch.cat([data["obs"] for data in policy.seen])
    batch, _ = buffer.rollout()
    stored = torch.from_numpy(batch.obs[batch.mask])
    assert len(policy.seen) == 2 * round(len(stored) / 32)
    for half in shown.chunk(2):
        assert torch.equal(half.unique(dim=0), stored.unique(dim=0))
        assert len(half) == len(stored)


def test_rows_with_random_actions_have_the_outputs_of_all_others():
    class Stored(Recorder):
        def _process_transition(self, obs, armor_output, timestep):
            transition = super()._process_transition(obs, armor_output, timestep)
            return {**transition, "logit": armor_output["logit"]}

    env = make_vec("CartPole-v1", 2)
    policy = Stored({"type": "stored"}, env.observation_space, env.action_space)
    buffer = policy.make_buffer(100, 2, 0)
    obs, act = env.reset(0), np.array([1, 0])
    output = policy.random_output(Batch(obs=obs), act)
    step = env.step(output.act)
    buffer.add(
        obs=obs, act=output.act, policy=output.policy, rew=step.rew, obs_next=step.obs_next,
        terminated=step.terminated, truncated=step.truncated,
    )  # fmt: skip
    Collector(policy, env, buffer, seed=0).collect(n_step=10)
    policy.update(64, buffer)
    env.close()
    (data,) = policy.seen
    assert output.act.tolist() == [1, 0]
    with torch.no_grad():
        expected = policy._model(data["obs"])["logit"]
    torch.testing.assert_close(data["logit"], expected)


def test_advantages_are_computed_from_rewards_as_they_are_read():
    env = make_vec("CartPole-v1", 1)
    policy = Advantages({"type": "advantages"}, env.observation_space, env.action_space)
    buffer = policy.make_buffer(100, 1, 0)
    Collector(policy, env, buffer, seed=0).collect(n_step=5)
    env.close()
    rows = buffer.rollout()[0][:, 0]
    assert rows.mask.all()
    with torch.no_grad():
        values = policy._model(torch.from_numpy(rows.obs_next))["value"].numpy()
    reward = make_reward({"type": "constant", "value": 3.0})
    policy.update(5, buffer, reward)
    (data,) = policy.seen
    assert not rows.terminated.any()
    errors = 3.0 + 0.5 * values - rows.policy.value
    by_hand, advantage = {}, 0.0
    for t in reversed(range(5)):
        advantage = errors[t] + 0.25 * advantage
        by_hand[rows.obs[t, 0].item()] = advantage
    found = dict(zip(data["obs"][:, 0].tolist(), data["adv"].tolist(), strict=True))
    assert found == pytest.approx(by_hand, rel=1e-5)


# --- the law


def drawn_reward(batch):
    """A random number for every transition."""
    return np.sin(997.0 * np.asarray(batch.obs)[..., 0]).astype(np.float32)


def first_update(policy, buffer, reward):
    """The loss and the gradient of the first update."""
    loss = policy.update(32, buffer, reward)["train/total_loss"]
    gradients = [p.grad for p in policy._model.parameters() if p.grad is not None]
    return loss, torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("nstep", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_another_reward_is_another_loss_and_another_gradient(tutorial, nstep, prioritized):
    found = []
    for section in ({"type": "env"}, {"terms": {"function": {"target": drawn_reward}}}):
        policy = tutorial_policy(tutorial, nstep, prioritized=prioritized)
        buffer = policy.make_buffer(200, 1, seed=0)
        episodes(buffer, (9, True), (9, False), rew=lambda _: 1.0, size=4)
        found.append(first_update(policy, buffer, make_reward(section)))
    (loss, gradient), (other_loss, other_gradient) = found
    assert abs(loss - other_loss) > 0.01
    assert not torch.allclose(gradient, other_gradient, atol=1e-3)


@pytest.mark.parametrize("nstep", [1, 3])
def test_what_the_environment_paid_never_reaches_the_loss_of_another_reward(tutorial, nstep):
    found = []
    for paid in (1.0, -50.0):
        policy = tutorial_policy(tutorial, nstep)
        # Most segments break off, and others are drawn in their place.
        buffer = episodes(ReplayBuffer(200, seed=0), *[(4, False)] * 9, rew=lambda _: paid, size=4)  # noqa: B023
        reward = make_reward({"type": "function", "target": drawn_reward})
        found.append(first_update(policy, buffer, reward))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_another_reward_is_another_gradient_on_policy():
    env, found = make_vec("CartPole-v1", 2), []
    for section in ({"type": "env"}, {"type": "function", "target": drawn_reward}):
        policy = Advantages({"type": "advantages"}, env.observation_space, env.action_space)
        buffer = policy.make_buffer(200, 2, 0)
        Collector(policy, env, buffer, seed=0).collect(n_step=32)
        found.append(first_update(policy, buffer, make_reward(section)))
    env.close()
    assert abs(found[0][0] - found[1][0]) > 0.01
    assert not torch.allclose(found[0][1], found[1][1], atol=1e-3)


# --- acting


def act(policy, n=2):
    return policy(Batch(obs=np.ones((n, *policy.observation_space.shape), np.float32)))


def test_only_what_a_transition_is_made_of_is_stored_with_it(tutorial):
    env = make_vec("CartPole-v1", 1)
    policy = tutorial_policy(tutorial)
    assert "policy" not in act(policy)
    policy = Advantages({"type": "advantages"}, env.observation_space, env.action_space)
    env.close()
    assert list(act(policy).policy.keys()) == ["value"]

    class Everything(Advantages):
        def _process_transition(self, obs, armor_output, timestep):
            return {"obs": obs, "reward": timestep.reward, **armor_output}

    policy = Everything({"type": "everything"}, policy.observation_space, TWO)
    assert set(act(policy).policy.keys()) == {"value", "logit"}


def test_settings_become_attributes_and_follow_the_learner(tutorial):
    policy = tutorial_policy(tutorial)
    assert policy._eps == 0.95
    policy.updates = 2000
    policy.advance(env_steps=10, progress=0.5)
    assert policy._eps == pytest.approx(0.1 + 0.85 / np.e)


def test_a_setting_that_nobody_declared_is_refused():
    class Undeclared(Recorder):
        def _get_setting_collect(self, command_info):  # noqa: ARG002
            return {"temperature": 1.0}

    with pytest.raises(ValueError, match="'temperature' is not in _collect_setting_set"):
        Undeclared({"type": "undeclared"}, NUMBER, TWO)


def test_exploration_belongs_to_collecting(tutorial):
    policy = tutorial_policy(tutorial)
    policy._eps = 1.0
    assert len(set(act(policy, 50).act)) == 2
    policy.eval()
    assert len(set(act(policy, 50).act)) == 1


def test_exploration_depends_on_the_seed_of_the_policy(tutorial):
    first, same, other = (tutorial_policy(tutorial, seed=seed) for seed in (0, 0, 1))
    for policy in (first, same, other):
        policy._eps = 1.0
    drawn = act(first, 50).act
    assert (drawn == act(same, 50).act).all()
    assert (drawn != act(other, 50).act).any()


def test_actions_are_those_of_the_space():
    policy = Recorder({"type": "recorder"}, NUMBER, spaces.Discrete(3, start=5))
    assert set(act(policy, 200).act) == {5, 6, 7}
    buffer = ReplayBuffer(10, seed=0)
    for action in (5, 7):
        buffer.add(
            env_ids=[0], obs=np.zeros((1, 1), np.float32), obs_next=np.zeros((1, 1), np.float32),
            act=np.array([action]), rew=np.array([1.0]), terminated=np.array([True]),
            truncated=np.array([False]),
        )  # fmt: skip
    policy.update(32, buffer)
    assert set(policy.seen[0]["action"].tolist()) == {0, 2}


def test_actions_of_a_box_lie_between_minus_one_and_one():
    env = make_vec("Pendulum-v1", 2)
    policy = Recorder({"type": "recorder"}, env.observation_space, env.action_space)
    buffer = policy.make_buffer(100, 2, 0)
    Collector(policy, env, buffer, seed=0).collect(n_step=40)
    env.close()
    policy.update(64, buffer)
    (data,) = policy.seen
    rows = buffer[buffer.stored_rows()]
    acted = dict(zip(rows.obs[:, 0].tolist(), rows.act[:, 0].tolist(), strict=True))
    learned = dict(zip(data["obs"][:, 0].tolist(), data["action"][:, 0].tolist(), strict=True))
    assert {key: 2 * value for key, value in learned.items()} == pytest.approx(
        {key: acted[key] for key in learned}
    )


def test_episodes_that_begin_are_announced():
    class Announced(Recorder):
        def _init_collect(self):
            super()._init_collect()
            self.begun = []

        def _reset_collect(self, data_id=None):
            self.begun.append(data_id)

    env = make_vec("CartPole-v1", 3, backend="base")
    policy = Announced({"type": "announced"}, env.observation_space, env.action_space)
    collected = Collector(policy, env, policy.make_buffer(900, 3, 0), seed=0).collect(n_step=300)
    env.close()
    assert policy.begun[0] is None
    announced = [row for rows in policy.begun[1:] for row in rows]
    assert set(announced) == {0, 1, 2}
    assert collected.n_episode - 3 <= len(announced) <= collected.n_episode


def test_an_evaluation_with_exploration_keeps_what_collecting_remembers():
    class Counting(Plugin):
        def __init__(self):
            self.rows = {}

        def forward(self, call, data, **kwargs):
            self.rows[len(self.rows)] = True
            return call(data, **kwargs)

        def reset(self, **_):
            self.rows.clear()

    env = make_vec("Pendulum-v1", 2, max_episode_steps=9)
    policy = Recorder({"type": "recorder"}, env.observation_space, env.action_space)
    policy._collect_armor.add_plugin("main", Counting)
    noise, counting = policy._collect_armor.plugins()
    noise.noise_generator = OUNoise()
    Collector(policy, env, seed=0).collect(n_step=10)
    state, rows = noise.noise_generator._x, dict(counting.rows)
    evaluate(policy, env, 3, deterministic=False)
    policy.predict(env.observation_space.sample(), deterministic=False)
    env.close()
    assert noise.noise_generator._x is state
    assert counting.rows == rows == dict.fromkeys(range(5), True)


def test_hidden_states_of_a_collecting_armor_begin_anew_with_an_episode():
    class Memory(nn.Module):
        def forward(self, data):
            before = data["prev_state"] or [None] * len(data["obs"])
            after = (
                torch.stack([torch.zeros(1) if state is None else state for state in before]) + 1
            )
            return {"logit": torch.zeros(len(data["obs"]), 2), "next_state": after}

    class Remembering(Recorder):
        def _create_model_from_cfg(self, cfg, model_type=None):  # noqa: ARG002
            return Memory()

        def _init_collect(self):
            super()._init_collect()
            self._collect_armor = Armor(self._model)
            self._collect_armor.add_plugin("main", "hidden_state", save_prev_state=True)
            self._collect_armor.add_plugin("main", "argmax_sample")

        def _process_transition(self, obs, armor_output, timestep):
            transition = super()._process_transition(obs, armor_output, timestep)
            return {**transition, "age": armor_output["prev_state"][0]}

    env = make_vec("CartPole-v1", 1)
    policy = Remembering({"type": "remembering"}, env.observation_space, env.action_space)
    buffer = policy.make_buffer(200, 1, 0)
    Collector(policy, env, buffer, seed=0).collect(n_step=40)
    env.close()
    rows = buffer[buffer.stored_rows()]
    expected, age = [], 0
    for over in rows.done:
        expected.append(age)
        age = 0 if over else age + 1
    assert rows.policy.prev_state[:, 0].tolist() == expected
    assert expected.count(0) > 1


# --- leaving things out, and wrong things


def test_the_network_may_be_the_users_own(tutorial):
    section = tutorial["cartpole_dqn_default_config"]["policy"]
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    class Other(FCDiscreteNet):
        pass

    made = tutorial["DQNPolicy"](section, space, TWO, model=Other)
    assert type(made._model) is Other
    given = Other(4, 2)
    assert tutorial["DQNPolicy"](section, space, TWO, model=given)._model is given
    named = tutorial["DQNPolicy"](section, space, TWO, model="fc_discrete")
    assert type(named._model) is FCDiscreteNet


def test_a_class_without_a_loss_says_what_is_missing():
    policy = CommonPolicy({"type": "bare"}, NUMBER, TWO)
    assert act(policy).act.shape == (2,)
    with pytest.raises(NotImplementedError, match=r"CommonPolicy has to define _forward_learn"):
        policy.update(4, episodes(ReplayBuffer(10, seed=0), (5, True)))


def test_two_batch_sizes_are_one_too_many(tutorial):
    section = tutorial["cartpole_dqn_default_config"]["policy"]
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    policy = tutorial["DQNPolicy"](section, space, TWO)
    with pytest.raises(ValueError, match=r"'policy.learn.batch_size' is 64, but .* is 32"):
        policy.update(32, episodes(ReplayBuffer(10, seed=0), (5, True), size=4))


def test_without_samples_it_waits_and_then_complains():
    policy, buffer = recorder(nstep=4), ReplayBuffer(100, seed=0)
    assert policy.update(8, episodes(buffer, (3, False))) == {}
    assert policy.updates == 1
    with pytest.raises(ValueError, match="makes no sample from 4 consecutive transitions"):
        policy.update(8, episodes(buffer, *[(3, False)] * 3))


def test_priorities_come_from_the_learner_and_weights_go_to_it():
    class Surprised(Recorder):
        def _forward_learn(self, data):
            super()._forward_learn(data)
            return {"priority": data["reward"]}

    policy = Surprised({"type": "surprised", "prioritized": True, "alpha": 1.0}, NUMBER, TWO)
    buffer = episodes(policy.make_buffer(10, 1, seed=0), (4, True), rew=lambda t: t + 1.0)
    policy.update(64, buffer)
    assert policy.seen[0]["weight"].tolist() == [1.0] * 64
    assert buffer.priorities[:4].tolist() == pytest.approx([1, 2, 3, 4], rel=1e-3)
    policy.advance(0, progress=1.0)  # now all of the bias is undone
    policy.update(64, buffer)
    data = policy.seen[1]
    assert torch.allclose(data["weight"] * data["reward"], data["reward"].min(), rtol=1e-3)


def test_it_goes_on_where_it_was_saved(tutorial):
    env = make_vec("CartPole-v1", 2)
    policies = [tutorial_policy(tutorial, seed=seed) for seed in (0, 1)]
    buffer = policies[0].make_buffer(200, 2, 0)
    Collector(policies[0], env, buffer, seed=0).collect(n_step=60)
    env.close()
    for _ in range(3):
        policies[0].update(16, buffer)
    policies[0].advance(60, 0.1)
    policies[1].load_training_state(policies[0].training_state())
    assert policies[1]._eps == policies[0]._eps < 0.95
    state = buffer.training_state()
    losses, actions = [], []
    for policy in policies:
        again = ReplayBuffer(200, n_envs=2)
        again.load_training_state(state)
        losses.append([policy.update(16, again)["train/total_loss"] for _ in range(3)])
        actions.append(act(policy, 30).act.tolist())
    assert losses[0] == losses[1]
    assert actions[0] == actions[1]


def test_optimizers_and_schedulers_are_saved():
    class Scheduled(Recorder):
        def _init_learn(self):
            super()._init_learn()
            self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1.0)
            self._scheduler = torch.optim.lr_scheduler.ExponentialLR(self._optimizer, 0.5)

    first, second = (Scheduled({"type": "scheduled"}, NUMBER, TWO) for _ in range(2))
    first._optimizer.step()
    first._scheduler.step()
    second.load_training_state(first.training_state())
    second._optimizer.step()
    second._scheduler.step()
    assert second._optimizer.param_groups[0]["lr"] == 0.25


def test_a_config_is_read_by_attributes():
    config = AttrDict({"learn": {"algo": {"nstep": 3}}, "model": {}})
    assert config.learn.algo.nstep == config["learn"]["algo"]["nstep"] == 3
    config.seed = 1
    assert config["seed"] == 1
    with pytest.raises(AttributeError, match="no key 'lern' here; there are: learn, model, seed"):
        config.lern  # noqa: B018


def test_annealing_is_not_offered():
    with pytest.raises(ValueError, match="anneal"):
        Recorder({"type": "recorder", "anneal": True}, NUMBER, TWO)
