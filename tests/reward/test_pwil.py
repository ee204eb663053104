import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch, ReplayBuffer
from guerdon.reward import Setting, create_reward_model, make_reward, pwil
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

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def line(*places):
    """Steps at places on a line, where the action is always the same."""
    obs = np.array(places, np.float32)[..., None]
    return rows(obs, np.zeros_like(obs))


def on_a_line(experts, horizon, **options):
    model = create_reward_model({"type": "pwil", "subsample": 1, "beta": 0.1, **options})
    model.setup(Setting(LINE, LINE, horizon=horizon))
    model.load_expert_data(demonstrations(line(*experts)))
    return model


def worth(cost, horizon, alpha=5.0, beta=0.1, size=2):
    return alpha * math.exp(-beta * horizon / math.sqrt(size) * cost)


def make(observation_space=VECTOR, action_space=TWO, horizon=20, **options):
    model = create_reward_model({"type": "pwil", "subsample": 5, **options})
    model.setup(Setting(observation_space, action_space, n_envs=4, seed=1, horizon=horizon))
    model.load_expert_data(noise(observation_space, action_space))
    return model


def rollout(n_steps=50, n_envs=4, seed=0):
    """One with episodes that end, and rows that are no data."""
    data, generator = transitions((n_steps, n_envs), seed=seed), np.random.default_rng(seed)
    data.mask = generator.random((n_steps, n_envs)) < 0.8
    data.terminated = (generator.random((n_steps, n_envs)) < 0.05) & data.mask
    data.truncated = (generator.random((n_steps, n_envs)) < 0.05) & data.mask
    data.cut = data.terminated | data.truncated
    return data


def plainly(model, data):
    """The paper's greedy coupling of each episode, in fractions of weights and a sorted list."""
    vectors = model._scaled(model._vectors(data))
    found = np.zeros(data.mask.shape)
    for env in range(found.shape[1]):
        left = np.full(len(model.atoms), 1 / len(model.atoms))
        for step in range(len(found)):
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
            if data.terminated[step, env] or data.truncated[step, env]:
                left[:] = 1 / len(model.atoms)
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
    model = create_reward_model({"type": "pwil", "horizon": 3})
    model.setup(Setting(LINE, LINE, horizon=500))
    assert model.horizon == 3


def test_distances_are_in_units_of_the_experts_spread():
    near, far = (on_a_line([0.0, 2.0 * unit], 2).estimate(line(0.5 * unit)).rew for unit in (1, 50))
    assert far.tolist() == pytest.approx(near.tolist())


def test_discrete_actions_are_one_hot():
    model = create_reward_model({"type": "pwil", "subsample": 1, "beta": 0.1})
    model.setup(Setting(LINE, TWO, horizon=1))
    places = np.zeros((2, 1), np.float32)
    model.load_expert_data(demonstrations(rows(places, np.array([0, 1]))))
    # Both columns of the one-hot have a spread of 1/2: the wrong action is sqrt(2) / (1/2) away.
    rew = model.estimate(rows(places[:1], np.array([1]))).rew
    assert rew.tolist() == pytest.approx([worth(0.5 * math.sqrt(8), 1, size=3)])


def test_rollouts_are_matched_as_the_paper_says():
    model, data = make(), rollout()
    found = model.scan(data)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[data.mask], plainly(model, data)[data.mask], rtol=1e-5)


@pytest.mark.parametrize("pieces", [2, 7, 50])
def test_episodes_go_on_from_one_rollout_to_the_next(pieces):
    model, data = make(), rollout()
    whole = copy.deepcopy(model).scan(data)
    found = [model.scan(data[part]) for part in np.array_split(np.arange(50), pieces)]
    np.testing.assert_array_equal(np.concatenate(found), whole)


def test_distances_in_chunks_change_nothing(monkeypatch):
    model, data = make(), rollout()
    whole = copy.deepcopy(model).scan(data)
    monkeypatch.setattr(pwil, "CHUNK", 3 * 4 * len(model.atoms))
    np.testing.assert_allclose(model.scan(data), whole, rtol=1e-6)


def test_environments_do_not_share_atoms():
    model, data = make(), rollout()
    found = model.scan(data)
    for env in range(4):
        alone = make().scan(data[:, env : env + 1])
        np.testing.assert_allclose(alone[:, 0], found[:, env], rtol=1e-6)


def test_broken_off_episodes_start_anew():
    model = on_a_line([0.0, 2.0], horizon=2)
    steps = line([0.0, 0.0])
    assert model.scan(steps).tolist() == [[5.0, 5.0]]
    model.break_off(np.array([1]))
    found = model.scan(steps)
    assert found[0, 1] == 5.0
    assert found[0, 0] == pytest.approx(worth(2.0 / 2, 2))
    model.break_off()
    assert model.scan(steps).tolist() == [[5.0, 5.0]]


def test_there_may_be_nothing_to_break_off_yet():
    model = make()
    model.break_off(np.array([2]))
    data = rollout()
    np.testing.assert_array_equal(model.scan(data), make().scan(data))


def test_an_episode_that_is_cut_at_its_newest_row_goes_on():
    model = on_a_line([0.0, 2.0], horizon=2)
    steps = line([0.0])
    steps.cut[-1] = True
    model.scan(steps)
    assert model.scan(steps)[0, 0] < 5.0


# --- what it is made from


def test_of_each_episode_every_so_many_th_row_is_taken():
    model = create_reward_model({"type": "pwil", "subsample": 4})
    model.setup(Setting(LINE, LINE, seed=3, horizon=5))
    episodes = [line(*range(100 * i, 100 * i + 12)) for i in range(6)]
    model.load_expert_data(demonstrations(*episodes))
    places = (model.atoms * model._spread + model._mean)[:, 0].round().reshape(6, 3)
    firsts = places[:, 0] - 100 * np.arange(6)
    np.testing.assert_allclose(np.diff(places, axis=1), 4)
    assert ((firsts >= 0) & (firsts < 4)).all()
    assert len(set(firsts)) > 1


def test_of_an_episode_shorter_than_the_subsampling_one_row_is_taken():
    model = create_reward_model({"type": "pwil", "subsample": 20})
    model.setup(Setting(LINE, LINE, horizon=5))
    model.load_expert_data(demonstrations(line(1, 2), line(3)))
    assert len(model.atoms) == 2


def test_the_sample_size_is_how_many_atoms_there_are():
    assert len(make(subsample=1, sample_size=7).atoms) == 7
    assert len(np.unique(make(subsample=1, sample_size=50).atoms, axis=0)) == 50
    assert len(make(subsample=1, sample_size=10_000).atoms) == 120


def test_the_spread_is_that_of_all_rows_not_only_of_those_taken():
    few, all_rows = make(sample_size=2), make(subsample=1)
    np.testing.assert_array_equal(few._spread, all_rows._spread)


def test_the_seed_decides_which_rows_are_taken():
    model = make()
    atoms = model.atoms
    np.testing.assert_array_equal(make().atoms, atoms)
    model.setup(Setting(VECTOR, TWO, seed=2, horizon=20))
    model.load_expert_data(noise())
    assert not np.array_equal(model.atoms, atoms)


# --- the contract


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 2, 2)])
def test_rows_on_their_own_are_taken_for_episodes_from_the_start(action_space, shape):
    model = make(action_space=action_space)
    model.scan(transitions((5, 4), action_space=action_space))
    data = transitions(shape, action_space=action_space)
    before = copy.deepcopy(data)
    first, second = model.estimate(data).rew, model.estimate(data).rew
    assert first.shape == shape
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(data.rew, before.rew)
    np.testing.assert_array_equal(data.obs, before.obs)
    wide = rows(data.obs.reshape(6, -1, 3), data.act.reshape(6, -1, *action_space.shape))
    fresh = make(action_space=action_space)
    np.testing.assert_array_equal(fresh.scan(wide), first.reshape(6, -1))


def test_rows_on_their_own_are_as_many_episodes_as_end():
    model, data = make(), rollout()
    expected = make().scan(data)
    for shown in (data, data[:, 1], data[:, :, None]):
        found = model.estimate(shown).rew
        assert found.shape == shown.rew.shape
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


def test_estimating_does_not_disturb_the_running_episodes():
    model, data = make(), rollout()
    expected = copy.deepcopy(model).scan(data)
    first = model.scan(data[:20])
    model.estimate(data)
    np.testing.assert_array_equal(np.concatenate([first, model.scan(data[20:])]), expected)


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


def test_what_was_scanned_is_found_again_by_the_rows_of_a_buffer():
    reward = make_reward({"type": "pwil", "subsample": 5})
    reward.setup(Setting(VECTOR, TWO, n_envs=2, horizon=20))
    (model,) = reward.models
    model.load_expert_data(noise())
    buffer = ReplayBuffer(40, n_envs=2, seed=0)
    data = transitions((10, 2))
    for step in range(10):
        row = {key: data[key][step] for key in data.keys() - {"mask", "cut"}}
        row["obs_next"] = data.obs[min(step + 1, 9)]
        buffer.add(row)
    fresh, places = buffer.rollout(("obs", "act", "rew", "terminated", "truncated"))
    expected = copy.deepcopy(model).scan(fresh)
    assert reward.learns
    reward.collect_data(fresh, places)
    batch, drawn = reward.view(buffer).sample(30)
    where = dict(zip(places.ravel().tolist(), expected.ravel().tolist(), strict=True))
    assert batch.rew.tolist() == [where[row] for row in drawn.tolist()]
    assert len(set(batch.rew.tolist())) > 10


def test_it_goes_on_where_its_state_was_taken():
    model, data = make(), rollout()
    model.scan(data[:20])
    state = model.state_dict()
    expected = model.scan(data[20:])
    other = create_reward_model({"type": "pwil"})
    other.setup(Setting(VECTOR, TWO, n_envs=4, horizon=20))  # needs no demonstrations
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.scan(data[20:]), expected)
    np.testing.assert_array_equal(other.estimate(data[:, 0]).rew, model.estimate(data[:, 0]).rew)


def test_demonstrations_are_worth_more_than_noise():
    generator = np.random.default_rng(0)
    places = np.cumsum(generator.normal(size=(200, 3)) * 0.1, axis=0).astype(np.float32)
    model = create_reward_model({"type": "pwil", "subsample": 1})
    model.setup(Setting(VECTOR, TWO, horizon=200))
    act = (places[:, 0] > 0).astype(np.int64)
    model.load_expert_data(demonstrations(rows(places, act)))
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
    data = transitions((5, 4), space)
    assert model.scan(data).shape == (5, 4)


# --- mistakes


def test_without_a_horizon_it_says_what_to_set():
    with pytest.raises(ValueError, match="pwil needs to know how long an episode can be"):
        create_reward_model({"type": "pwil"}).setup(Setting(VECTOR, TWO))


@pytest.mark.parametrize("space", [IMAGE, spaces.Dict({"a": VECTOR, "b": IMAGE})])
def test_images_are_refused(space):
    with pytest.raises(ValueError, match="pwil compares numbers, and observations hold images"):
        create_reward_model({"type": "pwil"}).setup(Setting(space, TWO, horizon=5))


def test_without_demonstrations_it_says_so():
    model = create_reward_model({"type": "pwil", "horizon": 5})
    with pytest.raises(ValueError, match="pwil has no demonstrations yet"):
        model.estimate(transitions((3,)))
    model.setup(Setting(VECTOR, TWO))
    with pytest.raises(ValueError, match="pwil has no demonstrations yet"):
        model.estimate(transitions((3,)))
    with pytest.raises(ValueError, match="pwil learns from demonstrations: name them"):
        model.load_expert_data()


def test_demonstrations_of_another_environment_are_refused():
    model = create_reward_model({"type": "pwil"})
    model.setup(Setting(VECTOR, TWO, horizon=5))
    with pytest.raises(ValueError, match="obs of the demonstrations"):
        model.load_expert_data(noise(LINE, TWO))


def test_a_state_of_another_environment_is_refused():
    model = on_a_line([0.0, 2.0], horizon=2)
    with pytest.raises(ValueError, match="demonstrations have 5 numbers a step, and a step of thi"):
        model.load_state_dict(make().state_dict())
    assert model.estimate(line(0.0)).rew.tolist() == [5.0]
