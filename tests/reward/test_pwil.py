import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch, ReplayBuffer
from guerdon.data.demonstrations import KEYS
from guerdon.reward import Setting, create_reward_model, make_reward, pwil
from guerdon.training.run import train
from tests.reward.experts import (
    ARM,
    IMAGE,
    TWO,
    VECTOR,
    as_items,
    demonstrations,
    noise,
    rows,
    transitions,
)
from tests.reward.ranked import same_states
from tests.rounding import assert_close
from tests.training.running import assert_same_run, metrics_of

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def line(*places):
    """Steps at places on a line, where the action is always the same."""
    obs = np.array(places, np.float32)[..., None]
    return rows(obs, np.zeros_like(obs))


def pwil_model(setting, experts, **options):
    model = create_reward_model({"type": "pwil", **options}, setting)
    model.load_expert_data(experts)
    return model


def on_a_line(experts, horizon, **options):
    setting, experts = Setting(LINE, LINE, horizon=horizon), demonstrations(line(*experts))
    return pwil_model(setting, experts, **{"subsample": 1, "beta": 0.1, **options})


def worth(cost, horizon, alpha=5.0, beta=0.1, size=2):
    return alpha * math.exp(-beta * horizon / math.sqrt(size) * cost)


def make(observation_space=VECTOR, action_space=TWO, seed=1, **options):
    setting = Setting(observation_space, action_space, n_envs=4, seed=seed, horizon=20)
    return pwil_model(
        setting, noise(observation_space, action_space), **{"subsample": 5, **options}
    )


def rollout(n_steps=50, n_envs=4, seed=0):
    """One with episodes that end, each followed by a row that is no transition."""
    data, generator = transitions((n_steps, n_envs), seed=seed), np.random.default_rng(seed)
    ends = generator.random((2, n_steps, n_envs)) < 0.05
    data.mask = np.ones((n_steps, n_envs), bool)
    data.mask[1:] = ~ends.any(0)[:-1]
    data.terminated, data.truncated = ends & data.mask
    data.first = np.ones((n_steps, n_envs), bool)
    data.first[1:] = ~data.mask[:-1]
    return data


def coupling(model, *parts, memory=None):
    """Annotate one rollout after the other."""
    memory = model.new_memory(parts[0].rew.shape[1]) if memory is None else memory
    found = []
    for part in parts:
        columns, memory = model.annotate(part, memory)
        found.append(columns["coupling"])
    return np.concatenate(found)


def reference(model, data):
    """The paper's greedy coupling of each episode, in fractions of weights and a sorted list."""
    vectors = model._scaled(model._vectors(data))
    found = np.zeros(data.mask.shape)
    for env in range(found.shape[1]):
        left = np.full(len(model.atoms), 1 / len(model.atoms))
        for step in range(len(found)):
            if data.first[step, env]:
                left[:] = 1 / len(model.atoms)
            if not data.mask[step, env]:
                continue
            distance = np.linalg.norm(model.atoms - vectors[step, env], axis=1)
            need, cost = 1 / model.horizon, 0.0
            for atom in np.argsort(distance):
                taken = min(need, left[atom])
                left[atom] -= taken
                need -= taken
                cost += taken * distance[atom]
            if need < 1e-9:
                scale = 5.0 * model.horizon / math.sqrt(vectors.shape[-1])
                found[step, env] = 5.0 * math.exp(-scale * cost)
    return found


# --- the coupling


def test_each_step_takes_the_nearest_of_what_is_left():
    # Places 0 and 2 have a spread of 1, so distances are as they look.
    model = on_a_line([0.0, 2.0], horizon=2)
    rew = model.estimate(line(0.0, 0.5)).rew
    # The first atom is gone: the second step has to take the one at 2, with weight 1 / 2.
    assert rew.tolist() == pytest.approx([5.0, worth(1.5 / 2, 2)])


def test_an_atom_serves_several_steps_where_the_horizon_is_longer():
    model = on_a_line([0.0, 2.0], horizon=4)
    rew = model.estimate(line(0.0, 0.0, 0.0, 1.0)).rew
    expected = [5.0, 5.0, worth(2.0 / 4, 4), worth(1.0 / 4, 4)]
    assert rew.tolist() == pytest.approx(expected)


def test_a_step_takes_parts_of_atoms_where_the_horizon_is_shorter():
    model = on_a_line([0.0, 1.0, 2.0], horizon=2)
    spread = math.sqrt(2 / 3)
    rew = model.estimate(line(0.0, 2.0)).rew
    # 1/2 of the weight is one atom (1/3) and half of the next (1/6).
    expected = worth(1 / 6 / spread, 2)
    assert rew.tolist() == pytest.approx([expected, expected])


def test_the_rest_of_an_episode_is_worth_nothing_when_all_is_taken():
    model = on_a_line([0.0, 2.0, 4.0], horizon=7)
    rew = model.estimate(line(*[1.0] * 9)).rew
    assert (rew[:7] > 0).all()
    assert rew[7:].tolist() == [0.0, 0.0]


def test_options_scale_the_reward():
    model = on_a_line([0.0, 2.0], horizon=3, alpha=2.0, beta=0.3)
    rew = model.estimate(line(1.0)).rew
    assert rew.tolist() == pytest.approx([worth(1 / 3, 3, alpha=2.0, beta=0.3)])


def test_the_options_horizon_goes_before_the_environments():
    model = create_reward_model({"type": "pwil", "horizon": 3}, Setting(LINE, LINE, horizon=500))
    assert model.horizon == 3


def test_distances_are_in_units_of_the_experts_spread():
    near, far = (on_a_line([0.0, 2.0 * unit], 2).estimate(line(0.5 * unit)).rew for unit in (1, 50))
    assert far.tolist() == pytest.approx(near.tolist())


def test_discrete_actions_are_one_hot():
    places = np.zeros((2, 1), np.float32)
    experts = demonstrations(rows(places, np.array([0, 1])))
    model = pwil_model(Setting(LINE, TWO, horizon=1), experts, subsample=1, beta=0.1)
    # Both columns of the one-hot have a spread of 1/2: the wrong action is sqrt(2) / (1/2) away.
    rew = model.estimate(rows(places[:1], np.array([1]))).rew
    assert rew.tolist() == pytest.approx([worth(0.5 * math.sqrt(8), 1, size=3)])


def test_rollouts_are_coupled_as_in_the_paper():
    model, data = make(), rollout()
    found = coupling(model, data)
    assert found.dtype == np.float32
    assert_close(found[data.mask], reference(model, data)[data.mask])


@pytest.mark.parametrize("pieces", [2, 7, 50])
def test_episodes_continue_in_the_next_rollout(pieces):
    model, data = make(), rollout()
    parts = [data[part] for part in np.array_split(np.arange(50), pieces)]
    np.testing.assert_array_equal(coupling(model, *parts), coupling(model, data))


def test_distances_in_chunks_change_nothing(monkeypatch):
    model, data = make(), rollout()
    whole = coupling(model, data)
    monkeypatch.setattr(pwil, "CHUNK", 3 * 4 * len(model.atoms))
    assert_close(coupling(model, data), whole)


def test_environments_do_not_share_atoms():
    model, data = make(), rollout()
    found = coupling(model, data)
    for env in range(4):
        alone = coupling(model, data[:, env : env + 1])
        assert_close(alone[:, 0], found[:, env])


def test_an_episode_starts_where_first_says():
    model = on_a_line([0.0, 2.0], horizon=2)
    steps, again = (
        line([0.0, 0.0]).replace(first=np.array([x])) for x in ([True] * 2, [False, True])
    )
    (_, found) = coupling(model, steps, again)
    assert found[1] == 5.0
    assert found[0] == pytest.approx(worth(2.0 / 2, 2))
    assert coupling(model, steps, again, steps)[2].tolist() == [5.0, 5.0]


def test_a_memory_of_other_environments_or_demonstrations_is_refused():
    model, data = make(), rollout()
    for memory in (model.new_memory(3), model.new_memory(4)[:, :-1], model.new_memory(5)):
        with pytest.raises(ValueError, match="the memory of pwil is of other"):
            model.annotate(data, memory)  # compiled code would leave the array


def test_annotating_changes_neither_the_model_nor_the_old_memory():
    model, data = make(), rollout()
    memory, state = model.new_memory(4), model.training_state()
    _, after = model.annotate(data, memory)
    assert (memory == model.horizon).all()
    assert (after != memory).any()
    assert same_states(model.training_state(), state)


# --- what it is made from


def test_of_each_episode_every_so_many_th_row_is_taken():
    episodes = [line(*range(100 * i, 100 * i + 12)) for i in range(6)]
    setting = Setting(LINE, LINE, seed=3, horizon=5)
    model = pwil_model(setting, demonstrations(*episodes), subsample=4)
    places = (model.atoms * model.spread + model.mean)[:, 0].round().reshape(6, 3)
    firsts = places[:, 0] - 100 * np.arange(6)
    assert_close(np.diff(places, axis=1), 4)
    assert ((firsts >= 0) & (firsts < 4)).all()
    assert len(set(firsts)) > 1


def test_of_an_episode_shorter_than_the_subsampling_one_row_is_taken():
    experts = demonstrations(line(1, 2), line(3))
    assert len(pwil_model(Setting(LINE, LINE, horizon=5), experts, subsample=20).atoms) == 2


def test_the_sample_size_is_how_many_atoms_there_are():
    assert len(make(subsample=1, sample_size=7).atoms) == 7
    assert len(np.unique(make(subsample=1, sample_size=50).atoms, axis=0)) == 50
    assert len(make(subsample=1, sample_size=10_000).atoms) == 120


def test_the_spread_is_that_of_all_rows_not_only_of_those_drawn():
    np.testing.assert_array_equal(make(sample_size=2).spread, make().spread)


def test_the_seed_decides_which_rows_are_drawn():
    np.testing.assert_array_equal(make(sample_size=7).atoms, make(sample_size=7).atoms)
    assert not np.array_equal(make(seed=2, sample_size=7).atoms, make(sample_size=7).atoms)


# --- the contract


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 2, 2)])
def test_rows_of_no_run_are_whole_episodes(action_space, shape):
    model = make(action_space=action_space)
    data = transitions(shape, action_space=action_space)
    before = copy.deepcopy(data)
    first, second = model.estimate(data).rew, model.estimate(data).rew
    assert first.shape == shape
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(data.rew, before.rew)
    np.testing.assert_array_equal(data.obs, before.obs)
    wide = rows(data.obs.reshape(6, -1, 3), data.act.reshape(6, -1, *action_space.shape))
    starts = np.arange(6)[:, None] == np.zeros(wide.rew.shape[1])
    np.testing.assert_array_equal(coupling(model, wide.replace(first=starts)), first.reshape(6, -1))


def test_rows_of_no_run_may_hold_several_episodes():
    model, data = make(), rollout()
    expected = coupling(model, data)
    np.testing.assert_array_equal(model.estimate(data).rew, expected)
    np.testing.assert_array_equal(model.estimate(data[:, 1]).rew, expected[:, 1])
    np.testing.assert_array_equal(model.estimate(data[:, :, None]).rew[:, :, 0], expected)


def test_a_list_of_two_episodes_is_two_episodes():
    model = on_a_line([0.0, 2.0], horizon=2)
    items = as_items(line(0.0, 0.0, 0.0))
    items[1]["done"] = True
    rew = [item["reward"] for item in model.estimate(items)]
    assert rew == pytest.approx([5.0, worth(2.0 / 2, 2), 5.0])


def test_a_single_transition_is_an_episode():
    model = on_a_line([0.0, 2.0], horizon=2)
    assert model.estimate(line(0.5)[0]).rew == pytest.approx(worth(0.5 / 2, 2))
    assert model.estimate(Batch(obs=np.ones((1, 1)), act=np.zeros((1, 1)), rew=np.zeros(1))).rew > 0


def test_equal_transitions_are_worth_the_same_whatever_objects_they_are():
    model, data = make(), transitions((6,))
    again = copy.deepcopy(data)
    torch_rows = data.replace(obs=torch.from_numpy(data.obs), act=torch.from_numpy(data.act))
    expected = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(again).rew, expected)
    np.testing.assert_array_equal(model.estimate(torch_rows).rew, expected)


def test_dictionaries_in_are_dictionaries_out():
    model, data = make(), transitions((6,))
    items = as_items(data)
    found = model.estimate(items)
    assert [item["reward"] for item in items] == [7.0] * 6
    assert [item["reward"] for item in found] == model.estimate(data).rew.tolist()


def test_rewards_are_stored_beside_the_transitions_of_a_buffer():
    setting = Setting(VECTOR, TWO, n_envs=2, horizon=20)
    reward = make_reward({"type": "pwil", "subsample": 5}, setting)
    assert not reward.changes  # nothing is trained beside the policy
    (model,) = reward.models
    model.load_expert_data(noise())
    buffer = ReplayBuffer(40, n_envs=2, seed=0)
    data = transitions((10, 2))
    for step in range(10):
        row = {key: data[key][step] for key in KEYS}
        buffer.add(row | {"obs_next": data.obs[min(step + 1, 9)]})
    assert reward.collects == ("act", "obs")
    fresh, places = buffer.rollout((*reward.collects, "rew", "terminated", "truncated"))
    annotated, _ = reward.annotate(fresh, reward.new_memory(2))
    buffer.annotate(places, annotated.annotations.to_dict())
    reward.collect_data(annotated, places, buffer)
    batch, drawn = reward.view(buffer, torch.device("cpu")).sample(30)
    expected = coupling(model, fresh).ravel().tolist()
    where = dict(zip(places.ravel().tolist(), expected, strict=True))
    assert batch.rew.tolist() == [where[row] for row in drawn.tolist()]
    assert len(set(batch.rew.tolist())) > 10


def test_a_state_needs_no_demonstrations():
    model, data = make(), rollout()
    other = create_reward_model({"type": "pwil"}, Setting(VECTOR, TWO, n_envs=4, horizon=20))
    assert not other.fitted
    other.load_training_state(model.training_state())
    assert other.fitted
    np.testing.assert_array_equal(coupling(other, data), coupling(model, data))
    np.testing.assert_array_equal(other.estimate(data[:, 0]).rew, model.estimate(data[:, 0]).rew)


def test_demonstrations_are_worth_more_than_noise():
    generator = np.random.default_rng(0)
    places = np.cumsum(generator.normal(size=(200, 3)) * 0.1, axis=0).astype(np.float32)
    act = (places[:, 0] > 0).astype(np.int64)
    experts = demonstrations(rows(places, act))
    model = pwil_model(Setting(VECTOR, TWO, horizon=200), experts, subsample=1)
    like, unlike, other_acts = (
        model.estimate(data).rew.mean()
        for data in (rows(places + 0.01, act), rows(places[::-1] * -2, act), rows(places, 1 - act))
    )
    assert like > 4.0
    assert unlike < 0.5 * like
    assert other_acts < 0.5 * like


def test_a_number_that_never_changes_does_not_blow_up_distances():
    model = on_a_line([3.0, 3.0], horizon=2)
    assert model.estimate(line(4.0)).rew.tolist() == pytest.approx([worth(1 / 2, 2)])


def test_observations_with_parts_are_joined():
    space = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})
    model = make(space)
    assert model.atoms.shape[1] == 3 + 3 + 2
    assert model.estimate(transitions((5, 4), space)).rew.shape == (5, 4)


# --- mistakes


def test_a_horizon_is_required():
    message = "'pwil' needs the maximum length of an episode: set 'horizon'"
    for make_it in (make_reward, create_reward_model):
        with pytest.raises(ValueError, match=message):
            make_it({"type": "pwil"}, Setting(VECTOR, TWO))
        make_it({"type": "pwil", "horizon": 5}, Setting(VECTOR, TWO))


@pytest.mark.parametrize("space", [IMAGE, spaces.Dict({"a": VECTOR, "b": IMAGE})])
def test_images_are_refused(space):
    with pytest.raises(ValueError, match="'pwil' compares numbers, but observations have images"):
        make_reward({"type": "pwil"}, Setting(space, TWO, horizon=5))


def test_demonstrations_are_required():
    model = create_reward_model({"type": "pwil", "horizon": 5}, Setting(VECTOR, TWO))
    with pytest.raises(ValueError, match="pwil has no demonstrations yet"):
        model.estimate(transitions((3,)))
    with pytest.raises(ValueError, match="pwil learns from demonstrations: set 'expert_data_path'"):
        model.load_expert_data()


def test_demonstrations_of_another_environment_are_refused():
    with pytest.raises(ValueError, match="obs of the demonstrations"):
        pwil_model(Setting(VECTOR, TWO, horizon=5), noise(LINE, TWO))


def test_a_state_of_another_environment_is_refused():
    model = on_a_line([0.0, 2.0], horizon=2)
    with pytest.raises(ValueError, match="demonstrations has 5 numbers, but a step of this"):
        model.load_training_state(make().training_state())
    assert model.estimate(line(0.0)).rew.tolist() == [5.0]


# --- prefill


def test_a_replay_buffer_can_start_with_whole_demonstrations():
    setting = Setting(LINE, LINE, n_envs=2, horizon=4, on_policy=False)
    options = {"type": "pwil", "subsample": 2, "prefill": 6, "beta": 0.1}
    reward = make_reward(options, setting)
    (model,) = reward.models
    experts = demonstrations(line(1, 2, 3, 4), line(5, 6, 7, 8))
    model.load_expert_data(experts)
    assert len(model.atoms) == 4
    assert [len(episode) for episode in model.prefill()] == [4, 4]  # 6 or more
    buffer = ReplayBuffer(64, n_envs=2, seed=0)
    row = rows(np.zeros((1, 2, 1), np.float32), np.zeros((1, 2, 1), np.float32))[0]
    buffer.add({key: row[key] for key in KEYS})
    buffer.cut()

    reward.add_episodes(buffer, model.prefill())

    stored = buffer[np.arange(2, 10) - 1]
    np.testing.assert_array_equal(stored.obs[:, 0], np.arange(1, 9))
    alone = [model.estimate(episode).rew for episode in experts.episodes]
    assert_close(stored.annotations.pwil.coupling, np.concatenate(alone))
    assert (stored.annotations.pwil.coupling > 0).all()


def test_without_a_replay_buffer_there_is_nothing_to_fill():
    setting = Setting(LINE, LINE, horizon=4)
    with pytest.raises(ValueError, match="'pwil' needs a policy with a replay buffer"):
        make_reward({"type": "pwil", "prefill": 10}, setting)


def test_a_run_starts_with_the_demonstrations_and_resumes_exactly(tmp_path):
    config = {
        "env": {"id": "CartPole-v1", "n_envs": 2},
        "policy": {"type": "sac", "model": {"hidden": [8]}},
        "reward": {"type": "pwil", "expert_data_path": "zoo:cartpole", "prefill": 600},
        "collect": {"n_step": 8, "warmup_steps": 16, "buffer_size": 4_000},
        "learn": {"batch_size": 16, "updates_per_collect": 1},
        "eval": {"every": 64, "episodes": 1},
        "run": {"max_steps": 128, "checkpoint_every": 64, "log_every": 32},
    }
    for name, steps in (("whole", 128), ("run", 64)):
        run = {**config["run"], "dir": str(tmp_path / name), "max_steps": steps}
        train({**config, "run": run}, seed=0, display="none")
    train(None, "run.max_steps=128", resume=tmp_path / "run", display="none")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    lines = metrics_of(tmp_path / "whole")
    assert lines[0]["buffer/size"] == 32 + 1_000  # two episodes of 500 steps


def test_what_is_well_paid_is_known_from_whole_demonstrated_episodes():
    """Of which every fourth step is an atom; the others are some way from one."""
    model = on_a_line(range(8), 8, subsample=4)
    rewards = model.reference.rewards
    assert len(rewards) == 9
    assert rewards[0] == 0
    assert 0 < rewards.median() < 5
    score, _ = model.annotate(rollout_of(np.full(8, 90.0)), model.new_memory(1))
    assert not model.reference.well_paid(torch.from_numpy(score["coupling"])).any()


def rollout_of(places):
    obs, time = places.astype(np.float32)[:, None, None], np.arange(len(places))[:, None]
    return Batch(obs=obs, act=np.zeros_like(obs), mask=time >= 0, first=time == 0)
