"""What is true of every policy: its states, its seeds, its files, its networks, its spaces."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from guerdon.collect import Collector
from guerdon.config.errors import ConfigError
from guerdon.data import Batch, Rollout
from guerdon.envs import make_vec
from guerdon.nn import ActorCritic, QNetwork, register_model
from guerdon.policy import DQN, POLICIES, Policy, create_policy, register_policy
from guerdon.reward import make_reward
from guerdon.training.evaluation import evaluate
from tests.policy.cases import (
    CASES,
    N_ENVS,
    assert_same_weights,
    collected,
    hashed,
    make_env,
    make_policy,
    spaces_of,
    twin,
    warmed_up,
    weights,
)
from tests.policy.spaces_env import AnySpaces
from tests.rounding import assert_close

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
ONE_OF_EACH = ["dqn", "a2c", "ppo", "ppo_continuous", "ddpg", "td3", "sac", "sac_discrete"]
one_of_each = pytest.mark.parametrize(
    "case", [CASES[name] for name in ONE_OF_EACH], ids=ONE_OF_EACH
)


def same_observation(case, n_rows=256):
    obs = spaces_of(case.env)[0]
    obs.seed(3)
    return Batch(obs=np.repeat(np.clip(obs.sample(), -1, 1)[None], n_rows, 0))


# --- states


@one_of_each
def test_the_flags_are_those_of_the_documented_table(case, monkeypatch):
    policy = make_policy(case)
    seen = {}

    def note(name, method):
        def noting(*args, **kwargs):
            seen[name] = (policy.training, policy.updating)
            return method(*args, **kwargs)

        monkeypatch.setattr(policy, name, noting)

    note("forward", policy.forward)
    buffer = collected(policy, case)
    assert seen.pop("forward") == (True, False)
    for name in ("process_fn", "learn", "post_process_fn"):
        note(name, getattr(policy, name))
    policy.update(16, buffer)
    assert seen == dict.fromkeys(("process_fn", "learn", "post_process_fn"), (True, True))
    assert (policy.training, policy.updating) == (True, False)
    evaluate(policy, make_env(case), 1)
    assert seen["forward"] == (False, False)
    assert (policy.training, policy.updating) == (True, False)


@one_of_each
def test_the_methods_are_called_in_the_documented_order(case, monkeypatch):
    policy = make_policy(case)
    buffer = collected(policy, case)
    calls = []
    for name in ("process_fn", "learn", "post_process_fn"):
        method = getattr(policy, name)
        monkeypatch.setattr(
            policy, name, lambda *a, _n=name, _m=method, **k: (calls.append(_n), _m(*a, **k))[1]
        )
    policy.update(16, buffer)
    assert calls == ["process_fn", "learn", "post_process_fn"]
    assert policy.updates == 1


def test_an_update_that_fails_leaves_the_updating_state(monkeypatch):
    policy, buffer = warmed_up(CASES["dqn"])

    def fails(*_, **__):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(policy, "learn", fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        policy.update(16, buffer)
    assert not policy.updating
    assert policy.updates == 3


@pytest.mark.usefixtures("rounding")
@one_of_each
def test_it_explores_while_collecting_and_only_then(case):
    policy, batch = make_policy(case), same_observation(case)
    assert len(np.unique(policy(batch).act)) > 1
    drawn = policy.generator.get_state()
    policy.updating = True
    act = policy(batch).act
    assert_close(act, np.broadcast_to(act[0], act.shape))
    policy.updating = False
    policy.eval()
    first = policy(batch).act
    assert_close(first, np.broadcast_to(first[0], first.shape))
    np.testing.assert_array_equal(policy(batch).act, first)
    assert torch.equal(policy.generator.get_state(), drawn)


@one_of_each
def test_an_evaluation_changes_nothing_and_repeats_itself(case):
    policy, _ = warmed_up(case)
    before = policy.training_state()
    first, second = (evaluate(policy, make_env(case), 4, seed=8).returns for _ in range(2))
    assert first == second
    after = policy.training_state()
    assert torch.equal(before["generator"], after["generator"])
    for name, value in before["module"].items():
        assert torch.equal(value, after["module"][name]), name
    assert policy.training


# --- spaces


KINDS = {
    "dqn": ["discrete", "discrete_from_5", "discrete_from_minus_1"],
    "a2c": ["discrete_from_5", "box", "box_2_by_3"],
    "ppo": ["discrete_from_5", "discrete_from_minus_1", "box", "box_double", "box_2_by_3"],
    "ddpg": ["box", "box_one_fixed"],
    "td3": ["box", "box_double", "box_2_by_3", "box_one_fixed"],
    "sac": ["discrete_from_5", "box", "box_double", "box_2_by_3", "box_one_fixed"],
}


def acts_and_learns(type_, observation, action, **options):
    """Everything a policy does, in an environment that looks closely at actions."""
    env = make_vec(AnySpaces, 2, kwargs={"observation": observation, "action": action})
    config = {"type": type_, "model": {"hidden": [8]}, **options}
    policy = create_policy(config, env.observation_space, env.action_space, seed=1)
    buffer = policy.make_buffer(64, 2, 0)
    Collector(policy, env, buffer, seed=1).collect(n_step=24)
    before = weights(policy)
    for _ in range(2):
        metrics = policy.update(8, buffer)
    assert all(np.isfinite(float(value)) for value in metrics.values()), metrics
    changed = [k for k, value in weights(policy).items() if not np.array_equal(value, before[k])]
    assert changed
    assert all(np.isfinite(value).all() for value in weights(policy).values())
    evaluate(policy, env, 2)
    return policy, buffer


@pytest.mark.parametrize(("type_", "action"), [(p, a) for p, kinds in KINDS.items() for a in kinds])
def test_actions_are_of_the_space_and_learned_from(type_, action):
    _, buffer = acts_and_learns(type_, "vector", action)
    space = make_vec(AnySpaces, 1, kwargs={"observation": "vector", "action": action}).action_space
    assert buffer.act.dtype == space.dtype


@pytest.mark.parametrize("observation", ["double", "number", "image", "dict"])
@pytest.mark.parametrize("type_", KINDS)
def test_observations_may_be_of_any_kind(type_, observation):
    acts_and_learns(type_, observation, KINDS[type_][0])


def test_segments_of_dictionaries_are_learned_from():
    acts_and_learns("dqn", "dict", "discrete", n_step=3, prioritized=True)


def test_raw_actions_beyond_the_bounds_reach_the_environment_clipped():
    space = spaces.Box(np.float32([-0.1]), np.float32([0.1]))
    policy = create_policy({"type": "ppo"}, spaces_of(CASES["ppo"].env)[0], space)
    output = policy(same_observation(CASES["ppo"]))
    assert np.abs(output.act).max() == np.float32(0.1)
    assert np.abs(output.policy.raw).max() > 0.5
    np.testing.assert_array_equal(np.clip(output.policy.raw, -0.1, 0.1), output.act)


# --- seeds


@every_case
def test_the_same_seed_gives_the_same_weights_and_actions(case):
    runs = []
    for noise in range(2):
        torch.rand(noise)  # the global generator is nobody's business
        policy, buffer = warmed_up(case, seed=7)
        runs.append((policy, buffer.act.copy()))
    (one, acts), (other, other_acts) = runs
    assert_same_weights(one, other)
    np.testing.assert_array_equal(acts, other_acts)


@one_of_each
def test_another_seed_gives_others(case):
    one, other = make_policy(case, seed=1), make_policy(case, seed=2)
    different = [k for k, v in weights(one).items() if not np.array_equal(v, weights(other)[k])]
    assert different
    twins = [twin(one, case) for _ in range(2)]
    twins[1].generator.manual_seed(2)
    batch = same_observation(case)
    assert not np.array_equal(twins[0](batch).act, twins[1](batch).act)


def test_a_policy_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    warmed_up(CASES["sac"])
    assert torch.equal(torch.get_rng_state(), before)


# --- files


@every_case
def test_updates_after_restoring_equal_updates_without(case):
    policy, buffer = warmed_up(case)
    policy.advance(500, 0.3)
    restored, copied = twin(policy, case), copy.deepcopy(buffer)
    for _ in range(3):
        policy.update(16, buffer)
        restored.update(16, copied)
    assert_same_weights(policy, restored)
    batch = same_observation(case)
    np.testing.assert_array_equal(policy(batch).act, restored(batch).act)
    one, other = policy.training_state(), restored.training_state()
    assert one["updates"] == other["updates"] == 6
    assert torch.equal(one["generator"], other["generator"])
    for name, state in one["optimizers"].items():
        for key, value in state.items():
            assert np.array_equal(value, other["optimizers"][name][key]), (name, key)


@one_of_each
def test_a_state_does_not_change_with_the_policy_it_was_taken_from(case):
    policy, buffer = warmed_up(case)
    before, state = weights(policy), policy.training_state()
    policy.update(16, buffer)
    policy.load_training_state(state)
    for name, value in weights(policy).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


# --- networks of the user's own


class OwnQ(nn.Module):
    """Takes sizes, as the documents' networks do."""

    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.layer = nn.Linear(obs_dim, action_dim)

    def forward(self, inputs):
        return {"logit": self.layer(inputs)}


class OwnActorCritic(nn.Module):
    """Computes both halves in one call, and has no method for one."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.policy = nn.Linear(observation_space.shape[0], int(action_space.n))
        self.values = nn.Linear(observation_space.shape[0], 1)

    def forward(self, obs):
        return {"logit": self.policy(obs), "value": self.values(obs).squeeze(-1)}


class SpacesQ(QNetwork):
    """Takes spaces and a config, as guerdon's own do."""


register_model("test_own_q", OwnQ)
register_model("test_own_actor_critic", OwnActorCritic)


@pytest.mark.parametrize(
    ("name", "own", "options"),
    [
        ("dqn", OwnQ, {}),
        ("dqn", SpacesQ, {}),
        ("dqn_3_step_prioritized", OwnQ, {}),
        ("ppo", OwnActorCritic, {}),
        ("a2c", OwnActorCritic, {}),
        ("dqn", OwnQ, {"type": "test_own_q"}),
        ("dqn", OwnQ, {"type": "tests.policy.test_base:OwnQ"}),
        ("ppo", OwnActorCritic, {"type": "test_own_actor_critic"}),
    ],
)
def test_a_users_network_comes_as_a_class_or_by_name(name, own, options):
    case = CASES[name]
    if options:
        config = {"type": case.type, **case.options, "model": options}
        policy = create_policy(config, *spaces_of(case.env))
    else:
        policy = make_policy(case, model=own)
    assert type(policy.model) is own
    learns_with_its_own_network(policy, case)


def test_a_users_network_comes_as_an_instance():
    for name, make in (("dqn", OwnQ(4, 2)), ("ppo", ActorCritic(*spaces_of(CASES["ppo"].env)))):
        policy = make_policy(CASES[name], model=make)
        assert policy.model is make
        learns_with_its_own_network(policy, CASES[name])


def learns_with_its_own_network(policy, case):
    before = weights(policy)
    policy.update(16, collected(policy, case))
    changed = {k for k, v in weights(policy).items() if not np.array_equal(v, before[k])}
    assert {name for name in before if name.startswith("model.")} <= changed


# --- rewards


def test_a_policy_reads_what_it_and_the_reward_need_and_nothing_else():
    policy, buffer = warmed_up(CASES["dqn"])
    asked = []
    read = policy.read
    policy.read = lambda size, from_, fields: (asked.append(fields), read(size, from_, fields))[1]
    policy.update(8, buffer)
    assert set(asked.pop()) == {"obs", "act", "rew", "terminated", "obs_next"}
    policy.update(8, buffer, make_reward({"type": "constant"}))
    assert set(asked.pop()) == {"obs", "act", "rew", "terminated", "obs_next"}
    rule = {"type": "function", "target": hashed, "fields": ("obs", "truncated")}
    policy.update(8, buffer, make_reward(rule))
    assert set(asked.pop()) == {"obs", "act", "rew", "terminated", "obs_next", "truncated"}


def test_a_new_reward_in_the_place_of_a_deleted_one_gets_its_own_fields():
    policy, buffer = warmed_up(CASES["ppo"])
    for field in ("truncated", "done") * 5:
        seen = []

        def rule(data, seen=seen):
            seen.extend(data.keys())
            return hashed(data)

        policy.update(
            64, buffer, make_reward({"type": "function", "target": rule, "fields": ("obs", field)})
        )
        assert field in seen


# --- registry, config, schedules


def test_policies_are_registered_by_a_decorator_or_by_a_call():
    @register_policy("test_decorated")
    class Decorated(DQN):
        pass

    class Called(DQN):
        pass

    register_policy("test_called", Called)
    try:
        for name, policy in (("test_decorated", Decorated), ("test_called", Called)):
            assert type(create_policy({"type": name}, *spaces_of(CASES["dqn"].env))) is policy
    finally:
        for name in ("test_decorated", "test_called"):
            del POLICIES._classes[name]


def test_an_unknown_policy_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match="dqn"):
        create_policy({"type": "dqm"}, *spaces_of(CASES["dqn"].env))


@one_of_each
def test_an_unknown_option_is_refused(case):
    config = {"type": case.type, "learning_rat": 1.0}
    with pytest.raises(ValueError, match="learning_rat"):
        create_policy(config, *spaces_of(case.env))


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3"])
def test_the_wrong_action_space_is_refused_with_the_policys_name(name):
    wrong = CASES["ppo" if name != "dqn" else "ppo_continuous"].env
    with pytest.raises(ValueError, match=f"^{name} supports"):
        create_policy({"type": name}, *spaces_of(wrong))


def test_the_base_class_asks_for_forward_and_learn():
    policy = Policy({}, *spaces_of(CASES["dqn"].env))
    with pytest.raises(NotImplementedError):
        policy(Batch(obs=np.zeros((1, 4))))
    with pytest.raises(NotImplementedError):
        policy.learn(Batch())


@one_of_each
def test_the_learning_rate_falls_in_a_straight_line_if_asked(case):
    policy = create_policy({"type": case.type, "anneal": True}, *spaces_of(case.env))
    full = policy.config.learning_rate
    for progress, share in ((0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (1.5, 0.0)):
        policy.advance(0, progress)
        assert [o.learning_rate for o in policy.optimizers.values()] == pytest.approx(
            [share * full] * len(policy.optimizers)
        )


def test_a_learning_rate_is_constant_if_nobody_asks():
    policy = make_policy(CASES["ppo"])
    policy.advance(0, 0.9)
    assert policy.optimizers["model"].learning_rate == policy.config.learning_rate


@pytest.mark.parametrize("size", [0, 10, 120])
def test_an_on_policy_buffer_is_a_rollout_that_grows(size):
    policy = make_policy(CASES["ppo"])
    buffer = policy.make_buffer(size, N_ENVS, 0, history=2)
    assert isinstance(buffer, Rollout)
    assert (buffer.n_envs, buffer.history) == (N_ENVS, 2)
    collected = Collector(policy, make_env(CASES["ppo"]), buffer).collect(n_step=120)
    assert len(buffer) == collected.n_step >= 120


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("updating", [True, False])
def test_it_explores_when_training_and_not_updating(training, updating):
    policy = make_policy(CASES["ppo"])
    policy.train(training)
    policy.updating = updating
    assert policy.explores is (training and not updating)


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sac"])
def test_what_is_not_said_about_a_network_is_the_policys_own_default(name):
    where = spaces_of(CASES[name].env)
    own = create_policy({"type": name}, *where).config.model
    told = create_policy({"type": name, "model": {"hidden": [5]}}, *where).config.model
    assert (own.activation, own.orthogonal) == ("relu", False)
    assert told == own.model_copy(update={"hidden": [5]})
