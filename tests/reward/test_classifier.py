"""A classifier of pictures decides what is a success, and nobody else does."""

import copy

import numpy as np
import pytest
import torch

from guerdon.collect import Collector
from guerdon.config.errors import ConfigError
from guerdon.data import Batch
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.reward import Reward, Setting, Term, make_reward
from guerdon.reward.classifier import ClassifierReward
from tests.policy.cases import Case
from tests.policy.reference import gradient, targets, watched_update
from tests.reward.seeing import (
    ID,
    FirstPixel,
    Lamp,
    episode,
    meta_of,
    pictures,
    reader,
    weights,
)
from tests.training.running import leaves, same

# --- what a transition is worth


def test_a_transition_is_scored_on_the_picture_that_it_leads_to():
    data = episode(0, 204, 51)
    rew = reader(terminate="never", reward_mode="per_step", reward_type="continuous").estimate(data)
    np.testing.assert_allclose(rew.rew, [0.0, 0.8, 0.2], atol=1e-6)


def test_a_success_pays_once_and_ends_the_episode():
    rew = reader().estimate(episode(10, 100, 200, 90, 250)).rew
    np.testing.assert_array_equal(rew, [0, 0, 1, 0, 0])


def test_a_continuous_success_pays_its_probability():
    rew = reader(reward_type="continuous").estimate(episode(10, 100, 204, 255)).rew
    np.testing.assert_allclose(rew, [0, 0, 0.8, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "expected"), [("binary", [0, 1, 1, 0, 1]), ("continuous", [0.2, 0.6, 0.8, 0.4, 1.0])]
)
def test_every_frame_is_paid_for_if_that_is_asked_for(kind, expected):
    model = reader(reward_mode="per_step", reward_type=kind)
    assert model.config.terminate == "never"
    assert not model.decides
    rew = model.estimate(episode(51, 153, 204, 102, 255)).rew
    np.testing.assert_allclose(rew, expected, atol=1e-6)


def test_an_episode_that_nothing_ends_pays_for_its_last_frame():
    model = reader(terminate="never")
    np.testing.assert_array_equal(model.estimate(episode(200, 10, 200)).rew, [0, 0, 1])
    np.testing.assert_array_equal(model.estimate(episode(200, 10, 90)).rew, [0, 0, 0])
    np.testing.assert_array_equal(model.estimate(episode(200, 10, 200, over=False)).rew, [0, 0, 0])


def test_paying_for_every_frame_cannot_end_the_episode():
    for terminate in ("read", "online"):
        with pytest.raises(ConfigError, match=f"'reward.terminate' is {terminate}: where a succ"):
            ClassifierReward({"reward_mode": "per_step", "terminate": terminate})


def test_the_threshold_is_that_of_the_fit_and_can_be_another():
    data = episode(102, 153, 204)
    said = {
        at: reader(meta=meta_of(threshold=at)).estimate(data).rew.tolist() for at in (0.3, 0.5, 0.7)
    }
    assert said == {0.3: [1, 0, 0], 0.5: [0, 1, 0], 0.7: [0, 0, 1]}
    other = reader(meta=meta_of(threshold=0.3), threshold=0.7)
    np.testing.assert_array_equal(other.estimate(data).rew, [0, 0, 1])


def test_a_probability_of_just_the_threshold_passes():
    at = float(np.float32(153 / 255))
    model = reader(meta=meta_of(threshold=at))
    np.testing.assert_array_equal(model.estimate(episode(152, 153)).rew, [0, 1])


def test_the_temperature_makes_probabilities_milder():
    model = reader(meta=meta_of(temperature=2.0), reward_mode="per_step", reward_type="continuous")
    odds = (0.8 / 0.2) ** 0.5
    np.testing.assert_allclose(model.estimate(episode(204)).rew, odds / (1 + odds), atol=1e-6)


def test_a_success_has_to_be_held():
    rew = reader(hold=3).estimate(episode(200, 200, 10, 200, 200, 200, 200)).rew
    np.testing.assert_array_equal(rew, [0, 0, 0, 0, 0, 1, 0])


def test_several_episodes_in_a_row_begin_with_nothing():
    data = Batch.cat([episode(10, 200), episode(200, 200), episode(10, 10)])
    np.testing.assert_array_equal(reader(hold=2).estimate(data).rew, [0, 0, 0, 1, 0, 0])


def test_rows_of_several_environments_have_episodes_of_their_own():
    data = Batch.stack([episode(200, 10, 10), episode(10, 200, 10)], axis=1)
    np.testing.assert_array_equal(reader().estimate(data).rew, [[1, 0], [0, 1], [0, 0]])


# --- ensembles and cameras


def doubts(value):
    return value / 2


def test_an_ensemble_says_its_mean():
    model = reader(
        FirstPixel(), FirstPixel(doubts), reward_mode="per_step", reward_type="continuous"
    )
    np.testing.assert_allclose(model.estimate(episode(204, 51)).rew, [0.6, 0.15], atol=1e-6)


def test_a_pessimistic_ensemble_takes_off_its_spread():
    def three(pessimism):
        members = (FirstPixel(), FirstPixel(doubts), FirstPixel(lambda value: 0 * value))
        return reader(*members, pessimism=pessimism, reward_mode="per_step",
                      reward_type="continuous")  # fmt: skip

    # 0.8, 0.4 and 0: a mean of 0.4, and a spread of sqrt((0.16 + 0 + 0.16) / 3).
    spread = (0.32 / 3) ** 0.5
    data = episode(204)
    np.testing.assert_allclose(three(0.5).estimate(data).rew, 0.4 - 0.5 * spread, atol=1e-6)
    np.testing.assert_allclose(three(1.0).estimate(data).rew, 0.4 - spread, atol=1e-6)
    assert three(2.0).estimate(data).rew == 0.0


def test_pessimism_decides_what_passes():
    data = episode(204)  # 0.8 and 0.4: a mean of 0.6, a spread of 0.2
    for pessimism, passes in ((0.0, 1), (0.4, 1), (0.6, 0)):
        model = reader(FirstPixel(), FirstPixel(doubts), pessimism=pessimism)
        np.testing.assert_array_equal(model.estimate(data).rew, passes)


def test_it_looks_through_the_cameras_that_it_was_fitted_with():
    keys = ["left", "right"]
    saved = weights(image_keys=keys, threshold=0.5)
    model = ClassifierReward({"reward_mode": "per_step", "reward_type": "continuous"})
    model.load_state_dict(saved)
    shown = {key: pictures([9, 99]) for key in ("right", "other", "left")}
    said = model.probability(shown)
    assert model.image_keys == keys
    for key, matters in (("left", True), ("right", True), ("other", False)):
        changed = model.probability({**shown, key: pictures([200, 20])})
        assert (changed != said).all() == matters
    member = model.members[0]
    with torch.no_grad():
        direct = torch.sigmoid(member({key: torch.from_numpy(shown[key]) for key in keys}))
    np.testing.assert_allclose(said, direct, atol=1e-6)


@pytest.mark.parametrize("channels_first", [False, True])
def test_pictures_alone_are_observations_too(channels_first):
    model = ClassifierReward({})
    model.load_state_dict(weights(threshold=0.5))
    shown = np.stack([Lamp.picture(level) for level in (10, 100, 250)])
    given = np.moveaxis(shown, -1, 1) if channels_first else shown
    expected = model.probability({"base_camera": shown})
    np.testing.assert_allclose(model.probability(given), expected, atol=1e-6)
    assert np.ptp(expected) > 0


def test_many_pictures_are_scored_in_few_calls_and_as_a_few_are():
    member = FirstPixel()
    model = reader(member)
    levels = np.arange(300).reshape(50, 6) % 256
    said = model.probability({"base_camera": pictures(levels)})
    np.testing.assert_allclose(said, levels / 255, atol=1e-6)
    assert member.frames == [128, 128, 44]
    assert model.probability({"base_camera": pictures(np.zeros((0, 3)))}).shape == (0, 3)


# --- asked alone


def test_asking_changes_nothing():
    model, data = ClassifierReward({"hold": 2}), episode(200, 200, 10, over=False)
    model.load_state_dict(weights(threshold=0.01))
    before, shown = leaves(copy.deepcopy(model.state_dict())), copy.deepcopy(data)
    for _ in range(2):
        np.testing.assert_array_equal(model.estimate(data).rew, [0, 1, 0])
    after = leaves(model.state_dict())
    assert [key for key in after if not same(before[key], after[key])] == []
    np.testing.assert_array_equal(data.rew, shown.rew)
    np.testing.assert_array_equal(data.obs_next.base_camera, shown.obs_next.base_camera)


def test_lists_of_dictionaries_are_scored():
    rows = [
        {
            "obs": {"base_camera": pictures(0)},
            "next_obs": {"base_camera": pictures(level)},
            "action": torch.zeros(1),
            "reward": torch.zeros(1),
            "done": False,
        }
        for level in (20, 200, 220)
    ]
    said = [float(row["reward"]) for row in reader().estimate(rows)]
    assert said == [0.0, 1.0, 0.0]
    assert all(float(row["reward"]) == 0 for row in rows)


def test_without_a_classifier_it_says_what_to_do():
    with pytest.raises(ValueError, match=r"no classifier yet: fit one with `guerdon reward fit`"):
        ClassifierReward({}).estimate(episode(1))


# --- the law

CASES = {
    "ppo": Case("ppo", (ID, 8)),
    "dqn": Case("dqn", (ID, 8), {"n_step": 3}),
    "td3": Case("td3", (ID, 8)),
    "sac": Case("sac", (ID, 8), {"n_step": 2}),
}
OTHERWISE = {
    "as the frames are": lambda value: value,
    "otherwise": lambda value: 1 - value,
}


def spaces_of(case):
    lamp = Lamp(continuous=case.type != "dqn", parts=False)
    return lamp.observation_space, lamp.action_space


def make_policy(case, **options):
    config = {"type": case.type, "model": {"hidden": [8]}, "max_grad_norm": None}
    return create_policy(config | case.options | options, *spaces_of(case), seed=1)


def made(name):
    """A policy of pictures that has learned a little, and a buffer that it has filled."""
    policy = make_policy(CASES[name])
    env = make_vec(ID, 3, kwargs={"parts": False, "continuous": name != "dqn"})
    collector = Collector(policy, env, policy.make_buffer(300, 3, 5), seed=5)
    collector.collect(n_step=90)
    policy.update(16, collector.buffer)
    return policy, collector.buffer


def paying(policy, buffer, function, **options):
    """A reward of a classifier, shown what the policy did."""
    model = reader(FirstPixel(function), **options)
    reward = Reward({"classifier": Term(model, 1.0)}, scale=0.1)
    reward.setup(Setting(*spaces_of(CASES[policy.config.type]), n_envs=3,
                         on_policy=policy.on_policy))  # fmt: skip
    data, rows = buffer.rollout()
    reward.collect_data(data, rows)
    if len(past := reward.past(rows[data.mask])):
        buffer.discard(past)
    return reward


PER_FRAME = {"reward_mode": "per_step", "reward_type": "continuous"}


@pytest.mark.parametrize("name", CASES)
def test_what_the_classifier_says_is_what_is_learned_from(name):
    policy, buffer = made(name)
    before = make_policy(CASES[name])
    before.load_training_state(policy.training_state())
    reward = paying(policy, buffer, OTHERWISE["as the frames are"], **PER_FRAME)
    rows = buffer.stored_rows()
    rewards = np.full(buffer.size, np.nan)
    rewards[rows] = 0.1 * buffer[rows].obs_next[:, 0, 0, 0] / 255
    np.testing.assert_allclose(reward.view(buffer)[rows].rew, rewards[rows], atol=1e-6)

    seen = watched_update(policy, buffer, reward)

    expected = targets(before, buffer, seen, rewards)
    for key, value in expected.items():
        np.testing.assert_allclose(seen.processed[key], value, rtol=1e-3, atol=1e-3, err_msg=key)
    for key, value in gradient(before, seen, expected).items():
        torch.testing.assert_close(
            seen.gradient[key], value, rtol=1e-2, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}"
        )


@pytest.mark.parametrize("options", [PER_FRAME, {}], ids=["per_step", "terminal"])
@pytest.mark.parametrize("name", CASES)
def test_another_classifier_is_another_target_and_another_gradient(name, options):
    seen = {}
    for kind, function in OTHERWISE.items():
        policy, buffer = made(name)
        keeps = {**options} or {"terminate": "never"}  # so that both read the same rows
        seen[kind] = watched_update(policy, buffer, paying(policy, buffer, function, **keeps))
    one, other = seen.values()
    for key in ("returns", "advantage") if policy.on_policy else ("target",):
        difference = (one.processed[key] - other.processed[key]).abs()
        assert (difference > 1e-5).float().mean() > (0.9 if options else 0.0), key
    assert any((one.gradient[k] - other.gradient[k]).abs().max() > 1e-6 for k in one.gradient)


@pytest.mark.parametrize("name", ["dqn", "td3", "sac"])
def test_at_a_success_the_target_is_the_reward_alone(name):
    policy, (_, buffer) = make_policy(CASES[name], n_step=1), made(name)
    reward = paying(policy, buffer, OTHERWISE["as the frames are"])
    seen = watched_update(policy, buffer, reward)
    ended = seen.read.rew > 0
    assert 0 < ended.sum() < len(ended)
    np.testing.assert_allclose(seen.processed["target"][torch.as_tensor(ended)], 0.1, atol=1e-6)


def test_flat_or_as_a_term_it_has_no_reward_of_the_environment():
    assert list(make_reward({"type": "classifier"}).terms) == ["classifier"]
