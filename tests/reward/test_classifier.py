"""Rewards of predicted success, alone and in the updates of policies."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from guerdon.collect import Collector
from guerdon.config.errors import ConfigError
from guerdon.data import Batch, ReplayBuffer
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.reward import Reward, Setting, Term, make_reward
from guerdon.reward import success_classifier as classifier
from guerdon.reward.success_classifier import ClassifierReward
from tests.policy.cases import Case
from tests.policy.reference import gradient, targets, watched_update
from tests.reward.seeing import (
    ID,
    FirstPixel,
    Lamp,
    episode,
    loaded,
    meta_of,
    pictures,
    reader,
    weights,
)
from tests.rounding import assert_close
from tests.training.running import leaves, same

# --- rewards of transitions


def test_a_transition_is_scored_by_the_image_it_leads_to():
    data = episode(0, 204, 51)
    rew = reader(terminate="never", reward_mode="per_step", reward_type="continuous").estimate(data)
    assert_close(rew.rew, [0.0, 0.8, 0.2])


def test_a_success_pays_once_and_ends_the_episode():
    rew = reader().estimate(episode(10, 100, 200, 90, 250)).rew
    np.testing.assert_array_equal(rew, [0, 0, 1, 0, 0])


def test_a_continuous_success_pays_its_probability():
    rew = reader(reward_type="continuous").estimate(episode(10, 100, 204, 255)).rew
    assert_close(rew, [0, 0, 0.8, 0])


@pytest.mark.parametrize(
    ("kind", "expected"), [("binary", [0, 1, 1, 0, 1]), ("continuous", [0.2, 0.6, 0.8, 0.4, 1.0])]
)
def test_per_step_pays_every_frame(kind, expected):
    model = reader(reward_mode="per_step", reward_type=kind)
    assert model.config.terminate == "never"
    assert not model.ends_episodes
    rew = model.estimate(episode(51, 153, 204, 102, 255)).rew
    assert_close(rew, expected)


def test_terminal_without_an_end_pays_the_last_frame():
    model = reader(terminate="never")
    np.testing.assert_array_equal(model.estimate(episode(200, 10, 200)).rew, [0, 0, 1])
    np.testing.assert_array_equal(model.estimate(episode(200, 10, 90)).rew, [0, 0, 0])
    np.testing.assert_array_equal(model.estimate(episode(200, 10, 200, over=False)).rew, [0, 0, 0])


def test_per_step_cannot_end_the_episode():
    for terminate in ("read", "online"):
        with pytest.raises(ConfigError, match=f"'reward.terminate' is {terminate}: a success "):
            ClassifierReward({"reward_mode": "per_step", "terminate": terminate})


def test_the_threshold_is_that_of_the_fit_by_default():
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


def test_logits_are_divided_by_the_temperature():
    model = reader(meta=meta_of(temperature=2.0), reward_mode="per_step", reward_type="continuous")
    odds = (0.8 / 0.2) ** 0.5
    assert_close(model.estimate(episode(204)).rew, odds / (1 + odds))


def test_a_success_has_to_be_held():
    rew = reader(hold=3).estimate(episode(200, 200, 10, 200, 200, 200, 200)).rew
    np.testing.assert_array_equal(rew, [0, 0, 0, 0, 0, 1, 0])


def test_hold_restarts_with_every_episode():
    data = Batch.cat([episode(10, 200), episode(200, 200), episode(10, 10)])
    np.testing.assert_array_equal(reader(hold=2).estimate(data).rew, [0, 0, 0, 1, 0, 0])


def test_environments_have_separate_episodes():
    data = Batch.stack([episode(200, 10, 10), episode(10, 200, 10)], axis=1)
    np.testing.assert_array_equal(reader().estimate(data).rew, [[1, 0], [0, 1], [0, 0]])


# --- ensembles and cameras


def half(value):
    return value / 2


def test_an_ensemble_predicts_the_mean():
    model = reader(FirstPixel(), FirstPixel(half), reward_mode="per_step", reward_type="continuous")
    assert_close(model.estimate(episode(204, 51)).rew, [0.6, 0.15])


def test_pessimism_subtracts_the_spread():
    def three(pessimism):
        members = (FirstPixel(), FirstPixel(half), FirstPixel(lambda value: 0 * value))
        return reader(*members, pessimism=pessimism, reward_mode="per_step",
                      reward_type="continuous")  # fmt: skip

    # 0.8, 0.4 and 0: a mean of 0.4, and a spread of sqrt((0.16 + 0 + 0.16) / 3).
    spread = (0.32 / 3) ** 0.5
    data = episode(204)
    assert_close(three(0.5).estimate(data).rew, 0.4 - 0.5 * spread)
    assert_close(three(1.0).estimate(data).rew, 0.4 - spread)
    assert three(2.0).estimate(data).rew == 0.0


def test_pessimism_counts_for_the_threshold():
    data = episode(204)  # 0.8 and 0.4: a mean of 0.6, a spread of 0.2
    for pessimism, passes in ((0.0, 1), (0.4, 1), (0.6, 0)):
        model = reader(FirstPixel(), FirstPixel(half), pessimism=pessimism)
        np.testing.assert_array_equal(model.estimate(data).rew, passes)


def test_it_uses_the_cameras_of_the_fit():
    keys = ["left", "right"]
    model = loaded(weights(image_keys=keys, threshold=0.5))
    shown = {key: pictures([9, 99]) for key in ("right", "other", "left")}
    said = model.probability(shown)
    assert model.image_keys == keys
    for key, matters in (("left", True), ("right", True), ("other", False)):
        changed = model.probability({**shown, key: pictures([200, 20])})
        assert (changed != said).all() == matters
    member = model.members[0]
    with torch.no_grad():
        direct = torch.sigmoid(member({key: torch.from_numpy(shown[key]) for key in keys}))
    assert_close(said, direct)


@pytest.mark.parametrize("channels_first", [False, True])
def test_observations_can_be_images(channels_first):
    model = loaded(weights(threshold=0.5))
    shown = np.stack([Lamp.picture(level) for level in (10, 100, 250)])
    given = np.moveaxis(shown, -1, 1) if channels_first else shown
    expected = model.probability({"base_camera": shown})
    assert_close(model.probability(given), expected)
    assert np.ptp(expected) > 0


def test_many_images_are_scored_in_few_calls():
    member = FirstPixel()
    model = reader(member)
    levels = np.arange(300).reshape(50, 6) % 256
    said = model.probability({"base_camera": pictures(levels)})
    assert_close(said, levels / 255)
    assert member.frames == [128, 128, 44]
    assert model.probability({"base_camera": pictures(np.zeros((0, 3)))}).shape == (0, 3)


# --- standalone


def test_estimate_changes_nothing():
    model, data = loaded(weights(threshold=0.01), hold=2), episode(200, 200, 10, over=False)
    before, shown = leaves(copy.deepcopy(model.training_state())), copy.deepcopy(data)
    for _ in range(2):
        np.testing.assert_array_equal(model.estimate(data).rew, [0, 1, 0])
    after = leaves(model.training_state())
    assert [key for key in after if not same(before[key], after[key])] == []
    np.testing.assert_array_equal(data.rew, shown.rew)
    np.testing.assert_array_equal(data.obs_next.base_camera, shown.obs_next.base_camera)


def test_a_given_probability_is_not_computed_again():
    model, data = reader(), episode(10, 200, 220)
    data.probability = model.probability(data.obs_next)
    calls = len(model.members[0].frames)
    np.testing.assert_array_equal(model.estimate(data).rew, [0, 1, 0])
    data.probability[2] = 0.0
    data.probability[1] = 0.1
    np.testing.assert_array_equal(model.estimate(data).rew, [0, 0, 0])
    assert len(model.members[0].frames) == calls


def test_annotated_transitions_are_scored_by_their_columns():
    model = reader(reward_type="continuous")
    batch = Batch(
        rew=torch.zeros(2, 2),
        probability=torch.tensor([[0.9, 0.8], [0.7, 0.0]]),
        paid=torch.tensor([[True, False], [True, False]]),
    )
    torch.testing.assert_close(model.score(batch), torch.tensor([[0.9, 0.0], [0.7, 0.0]]))
    assert not model.members[0].frames


flags = arrays.arrays(bool, (20, 2))


@settings(max_examples=30, deadline=None)
@given(flags, flags, flags, st.integers(1, 3), st.integers(1, 19))
def test_frames_that_are_left_out_come_after_a_success(bright, mask, first, hold, cut):
    rollout = Batch(
        obs_next=Batch(base_camera=pictures(200 * bright)),
        mask=mask, first=first & mask, terminated=np.zeros_like(mask),
        truncated=np.zeros_like(mask),
    )  # fmt: skip
    found, frames = [], []
    for span, parts in ((100, (slice(None),)), (8, (slice(0, cut), slice(cut, None)))):
        model = reader(hold=hold)
        memory, columns = model.new_memory(2), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(classifier, "_SPAN", span)
            for rows in parts:
                part, memory = model.annotate(rollout[rows], memory)
                columns.append(Batch(part))
        found.append(Batch.cat(columns))
        frames.append(sum(model.members[0].frames))
    assert found[0] == found[1]
    after = found[0].after_success.sum()
    assert mask.sum() - after <= frames[1] <= frames[0] == mask.sum()


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


def test_without_a_classifier_the_error_says_what_to_do():
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


def made(name, function=OTHERWISE["as the frames are"], **options):
    """A policy of images that has learned a little, its transitions, and a reward for them."""
    policy = make_policy(CASES[name])
    setting = Setting(*spaces_of(CASES[name]), n_envs=3, on_policy=policy.on_policy)
    model = reader(FirstPixel(function), setting=setting, **options)
    reward = Reward({"classifier": Term(model, 1.0)}, scale=0.1)
    env = make_vec(ID, 3, kwargs={"parts": False, "continuous": name != "dqn"})
    buffer = ReplayBuffer(300, 3, seed=5)
    Collector(policy, env, buffer, reward=reward, seed=5).collect(n_step=90)
    policy.update(16, buffer)
    return policy, buffer, reward


PER_FRAME = {"reward_mode": "per_step", "reward_type": "continuous"}


@pytest.mark.parametrize("name", CASES)
def test_targets_and_gradients_are_those_of_the_predictions(name):
    policy, buffer, reward = made(name, **PER_FRAME)
    before = make_policy(CASES[name])
    before.load_training_state(policy.training_state())
    rows = buffer.stored_rows()
    rewards = np.full(buffer.size, np.nan)
    rewards[rows] = 0.1 * buffer[rows].obs_next[:, 0, 0, 0] / 255
    found = reward.view(buffer, torch.device("cpu"))[rows].rew
    assert_close(found, rewards[rows])

    seen = watched_update(policy, buffer, reward)

    expected = targets(before, buffer, seen, rewards)
    for key, value in expected.items():
        assert_close(seen.processed[key], value, rtol=1e-3, atol=1e-3, err_msg=key)
    for key, value in gradient(before, seen, expected).items():
        torch.testing.assert_close(
            seen.gradient[key], value, rtol=1e-2, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}"
        )


@pytest.mark.parametrize("options", [PER_FRAME, {}], ids=["per_step", "terminal"])
@pytest.mark.parametrize("name", CASES)
def test_another_classifier_changes_targets_and_gradients(name, options):
    keeps = options or {"terminate": "never"}  # so that both read the same rows
    one, other = (watched_update(*made(name, function, **keeps)) for function in OTHERWISE.values())
    for key in ("returns", "advantage") if "advantage" in one.processed else ("target",):
        difference = (one.processed[key] - other.processed[key]).abs()
        assert (difference > 1e-5).float().mean() > (0.9 if options else 0.0), key
    assert any((one.gradient[k] - other.gradient[k]).abs().max() > 1e-6 for k in one.gradient)


@pytest.mark.parametrize("name", ["dqn", "td3", "sac"])
def test_at_a_success_the_target_is_the_reward_alone(name):
    _, buffer, reward = made(name)
    seen = watched_update(make_policy(CASES[name], n_step=1), buffer, reward)
    ended = seen.read.rew > 0
    assert 0 < ended.sum() < len(ended)
    assert_close(seen.processed["target"][torch.as_tensor(ended)], 0.1)


def test_alone_it_has_no_reward_of_the_environment():
    reward = make_reward({"type": "classifier"}, Setting(checkpoint_path="fit"))
    assert list(reward.terms) == ["classifier"]
