"""Predicted success in runs: ends of episodes, checkpoints, and what the learner sees."""

import copy
import re

import numpy as np
import pytest
import torch

from guerdon.collect import Collector
from guerdon.config.errors import ConfigError
from guerdon.data import Batch, ReplayBuffer
from guerdon.data.frames import resized
from guerdon.data.rollout import Rollout
from guerdon.envs import make_vec
from guerdon.reward import Reward, Term
from guerdon.reward.controls import EnvReward
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.training.checkpoints import load_checkpoint
from guerdon.training.run import train
from guerdon.training.trainers import train_reward
from tests.reward.seeing import (
    ID,
    RESETS_LATER,
    SIZE,
    FirstPixel,
    Lamp,
    config_of,
    loaded,
    pictures,
    reader,
    said_of,
    weights,
    write_fit,
)
from tests.rounding import assert_close
from tests.training.running import assert_same_run, leaves, resume, same


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    """The folder of a fit with random weights, for which half of a lamp's images are successes."""
    return write_fit(tmp_path_factory.mktemp("fit"))


@pytest.fixture(scope="module")
def ran(fit, tmp_path_factory):
    """Runs with that classifier, made when they are first needed."""
    root = tmp_path_factory.mktemp("ran")

    def get(policy="ppo", steps=128):
        directory = root / f"{policy}-{steps}"
        if not directory.exists():
            train(config_of(directory, fit, policy), f"run.max_steps={steps}", display="none")
        return directory

    return get


# --- in a run: on read, online, or never


def lamps(n_envs=3, **kwargs):
    return make_vec(ID, n_envs, backend="base", kwargs={"length": 6, **kwargs})


class Up:
    """Acts at random, from a seed, and a little upwards."""

    training = False

    def __init__(self, seed=0):
        self.generator = np.random.default_rng(seed)

    def __call__(self, batch, state=None):  # noqa: ARG002
        number = len(batch.obs["state"])
        return Batch(act=self.generator.normal(0.4, 1.0, (number, 1)).astype(np.float32))


def collected(model, rounds=(30, 30), n_envs=3, **terms):
    """A reward and a buffer, after some rounds of collecting."""
    reward = Reward({"classifier": Term(model, 1.0), **terms})
    buffer = ReplayBuffer(1_000, n_envs)
    collector = Collector(Up(), lamps(n_envs), buffer, reward=reward, seed=4)
    for amount in rounds:
        collector.collect(n_step=amount)
        train_reward(reward, collector, 0)
    return reward, collector


def levels_of(obs):
    return obs.base_camera[..., 0, 0, 0]


def read(reward, collector):
    fields = ("obs", "obs_next", "terminated", "truncated")
    view = reward.view(collector.buffer, torch.device("cpu"))
    return view.rollout(fields)[0].to_numpy()


def test_on_read_the_first_success_is_the_last_transition():
    reward, collector = collected(reader())
    data = read(reward, collector)
    passes = levels_of(data.obs_next) / 255 >= 0.5
    np.testing.assert_array_equal(data.rew[data.mask], passes[data.mask])
    np.testing.assert_array_equal(data.terminated[data.mask], passes[data.mask])
    assert 3 < passes[data.mask].sum() < data.mask.sum() < 60
    assert not (levels_of(data.obs)[data.mask] / 255 >= 0.5).any()


def test_frames_are_scored_once_and_few_after_a_success():
    member = FirstPixel()
    reward, collector = collected(reader(member), rounds=(600,))
    learned = len(collector.buffer)
    assert learned <= sum(member.frames) < 600
    assert len(member.frames) <= 600 / 3 / 8 + 1  # many steps in one call
    calls = len(member.frames)
    read(reward, collector)
    collector.buffer.sample(64)
    assert len(member.frames) == calls, "predictions are stored"


def test_terminate_never_ends_nothing():
    reward, collector = collected(reader(terminate="never"))
    data = read(reward, collector)
    assert data.mask.sum() == len(collector.buffer) == 60
    assert not data.terminated.any()
    expected = data.truncated & (levels_of(data.obs_next) / 255 >= 0.5)
    np.testing.assert_array_equal(data.rew[data.mask], expected[data.mask])
    assert 0 < expected[data.mask].sum() < data.truncated[data.mask].sum()


def test_online_resets_the_environment_at_a_success():
    member = FirstPixel()
    reward, collector = collected(reader(member, terminate="online"))
    data = read(reward, collector)
    assert data.mask.all()  # nothing is thrown away
    passes = levels_of(data.obs_next) / 255 >= 0.5
    np.testing.assert_array_equal(data.rew, passes)
    np.testing.assert_array_equal(data.terminated, passes)
    assert passes.sum() > 3
    # What follows is the first picture of an episode, and not the one that was a success.
    follows = levels_of(data.obs)[1:][passes[:-1]]
    assert (follows < 100).all()
    assert member.frames == [3] * 20, "each step is scored once, when it is taken"


@pytest.mark.parametrize("hold", [1, 2, 3])
def test_online_and_read_agree_about_the_same_steps(hold):
    reward, collector = collected(reader(terminate="online", hold=hold), (33, 21))
    online = read(reward, collector)
    # The same rows, scored by another model.
    again = reader(terminate="read", hold=hold).estimate(
        Batch(
            rew=online.rew, obs_next=online.obs_next, mask=online.mask,
            terminated=online.cut & online.terminated, truncated=online.truncated,
        )
    )  # fmt: skip
    np.testing.assert_array_equal(again.rew, online.rew)
    assert online.rew.sum() > 1


def online_collector(*members, **options):
    reward = Reward({"classifier": Term(reader(*members, terminate="online", **options), 1.0)})
    return Collector(Up(), lamps(), reward=reward, seed=4)


def test_online_counted_episodes_end_at_a_success_too():
    collected = online_collector().collect(n_episode=7)
    assert collected.n_episode == 7
    assert min(collected.lengths) < max(collected.lengths) == 6
    assert collected.n_step == sum(collected.lengths)


def test_online_frames_of_idle_environments_do_not_count():
    """Otherwise they would count for the first frames of the next round, where two are needed."""
    collector = online_collector(FirstPixel(lambda value: 0 * value + 0.9), hold=2)
    for _ in range(3):
        assert collector.collect(n_episode=4).lengths == [2] * 4


@pytest.mark.parametrize("make_buffer", [ReplayBuffer, lambda size, n: Rollout(size // n, n)])
def test_online_counted_episodes_are_scored_once(make_buffer):
    member = FirstPixel()
    reward = Reward({"classifier": Term(reader(member, terminate="online"), 1.0)})
    collector = Collector(Up(), lamps(), make_buffer(300, 3), reward=reward, seed=4)
    collector.collect(n_episode=7)
    assert set(member.frames) == {3}
    data = read(reward, collector)
    passes = levels_of(data.obs_next) / 255 >= 0.5
    np.testing.assert_array_equal(data.rew[data.mask], passes[data.mask])
    assert passes[data.mask].sum() > 2


def test_online_needs_environments_that_are_reset_one_by_one(fit, tmp_path):
    changes = config_of(tmp_path / "run", fit, terminate="online")
    changes["env"] |= {"id": RESETS_LATER, "backend": "native"}
    with pytest.raises(ValueError, match=r"'reward.terminate' is online, but single environments"):
        train(changes, display="none")
    assert not (tmp_path / "run").exists()


def test_the_environments_reward_is_a_term_only_if_configured():
    reward, collector = collected(reader())
    data = read(reward, collector)
    assert data.rew_env[data.mask].any()
    assert list(data.rew_terms.keys()) == ["classifier"]
    mixed, collector = collected(reader(), env=Term(EnvReward({}), 0.1))
    data = read(mixed, collector)
    expected = data.rew_terms.classifier + 0.1 * data.rew_env
    assert_close(data.rew[data.mask], expected[data.mask])
    assert (data.rew_terms.classifier != data.rew)[data.mask].any()


# --- files


def test_state_is_a_copy_and_can_be_restored():
    model = loaded(weights(2, seed=3))
    other = loaded(copy.deepcopy(model.training_state()))
    shown = {"base_camera": pictures([0, 99, 255])}
    np.testing.assert_array_equal(model.probability(shown), other.probability(shown))
    assert other.threshold == model.threshold
    held = model.training_state()
    model.meta["threshold"] = 0.123
    with torch.no_grad():
        for weight in model.members[0].parameters():
            weight.zero_()
    assert held["meta"]["threshold"] == other.threshold
    assert held["members"][0]["head.4.weight"].any()


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [("precision", 0.79, said_of((0.9, 79), (0.9, 21))),
     ("recall", 0.4, said_of((0.9, 4), (0.5, 6), (0.1, 5), (0.1, 5)))],
)  # fmt: skip
def test_precision_and_recall_have_a_minimum(name, found, said):
    saved = weights(held_out=said, threshold=0.625)
    least = {"precision": 0.8, "recall": 0.5}[name]
    sentence = (
        f"the classifier has a {name} of {found:.2f} on held-out episodes at the threshold 0.625, "
        f"which is below 'reward.min_{name}' ({least}): collect more trajectories of both kinds "
        f"and fit it again, or lower reward.min_{name} if this is acceptable"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        loaded(saved).check_good_enough()
    loaded(saved, **{f"min_{name}": 0.3}).check_good_enough()


def test_precision_and_recall_are_those_at_the_threshold_in_use():
    said = said_of((0.2, 2), (0.5, 5), (0.8, 3), (0.2, 9), (0.5, 1), (0.1, 0))
    saved = weights(held_out=said, threshold=0.3)
    loaded(saved, threshold=0.45).check_good_enough()  # of 9 frames, 8 of the 10
    with pytest.raises(ValueError, match=r"a recall of 0.30 on held-out episodes at the thr"):
        loaded(saved, threshold=0.6).check_good_enough()
    with pytest.raises(ValueError, match=r"a precision of 0.50 on held-out episodes at the thr"):
        loaded(saved, threshold=0.15).check_good_enough()


def test_precision_and_recall_are_those_with_pessimism():
    said = said_of(([0.95, 0.95], 4), ([0.95, 0.45], 6), ([0.1, 0.1], 5), ([0.2, 0.2], 5))
    saved = weights(2, held_out=said, threshold=0.6)  # means of 0.95 and 0.7, spreads of 0 and 0.25
    loaded(saved, pessimism=0.3).check_good_enough()
    sentence = r"a recall of 0.40 on held-out episodes at the threshold 0.600 \(pessimism 0.5\)"
    with pytest.raises(ValueError, match=sentence):
        loaded(saved, pessimism=0.5).check_good_enough()


def test_pessimism_needs_several_classifiers():
    with pytest.raises(ValueError, match=r"'reward.pessimism' is set, but a single classifier has"):
        loaded(weights(), pessimism=1.0).check_good_enough()
    loaded(weights(2), pessimism=1.0).check_good_enough()


@pytest.mark.parametrize("option", [{"hold": 2}, {"threshold": 0.3}])
def test_options_without_effect_are_refused(option):
    with pytest.raises(ConfigError, match="has no effect with reward_type continuous"):
        ClassifierReward({"reward_type": "continuous", "reward_mode": "per_step", **option})


def test_precision_is_0_if_nothing_passes():
    saved = weights(held_out=said_of((0.1, 5), (0.1, 5)), threshold=0.5)
    with pytest.raises(ValueError, match=r"has a precision of 0.00 on held-out"):
        loaded(saved).check_good_enough()
    loaded(saved, min_precision=0, min_recall=0).check_good_enough()


def load(fit, tmp_path, env=(), **reward):
    config = config_of(tmp_path / "run", fit, **reward)
    config["env"]["kwargs"] |= dict(env)
    try:
        return train(config, "run.max_steps=32", display="none")
    finally:
        if not (tmp_path / "run" / "config.yaml").exists():
            assert not (tmp_path / "run").exists(), "an error leaves nothing behind"


@pytest.mark.parametrize(
    ("field", "asked", "has"),
    [
        ("image_keys", ["wrist"], "['base_camera']"),
        ("image_size", [3, 64, 64], "[3, 16, 16]"),
        ("width", 8, "4"),
        ("hidden_dim", 256, "8"),
        ("num_spatial_blocks", 8, "2"),
    ],
)
def test_an_option_that_differs_from_the_checkpoint_is_named(field, asked, has, fit, tmp_path):
    sentence = f"has reward.model.{field} {has}, but {asked} was asked for"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load(fit, tmp_path, **{field: asked})


def test_an_option_that_differs_from_the_run_is_named(ran, tmp_path):
    with pytest.raises(ValueError, match=r"has reward.model.hidden_dim 8, but 99 was asked for"):
        load(str(ran()), tmp_path, hidden_dim=99)


def test_options_can_be_those_of_the_checkpoint(fit, tmp_path):
    same_as = {"image_keys": ["base_camera"], "image_size": [3, SIZE, SIZE], "width": 4}
    assert load(fit, tmp_path, **same_as)["env_steps"] == 32


def test_missing_cameras_are_named(tmp_path):
    other = write_fit(tmp_path / "fit", image_keys=["wrist"], threshold=0.5)
    with pytest.raises(ValueError, match=r"'wrist' \(reward.model.image_keys\), but observations "):
        load(other, tmp_path)


def test_observations_without_a_camera_are_refused(fit, tmp_path):
    config = config_of(tmp_path / "run", fit)
    config["env"] = {"id": "guerdon/Target-v0", "n_envs": 2}
    config["policy"]["model"].pop("keys")
    with pytest.raises(ValueError, match=r"'base_camera' .*, but observations have no camera: "):
        train(config, display="none")


def test_hold_beyond_the_horizon_is_refused(fit, tmp_path):
    load(fit, tmp_path, hold=8)
    config = config_of(tmp_path / "other", fit, hold=9)
    with pytest.raises(ValueError, match=r"'reward.hold' is 9, but an episode has 8 steps at most"):
        train(config, "env.max_episode_steps=8", display="none")


def test_images_are_resized_as_in_collecting(tmp_path):
    saved = weights(image_size=[3, 8, 8], threshold=0.5)
    seen = []
    model = loaded(saved)
    model.members[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    shown = np.stack([Lamp.picture(level) for level in (10, 250)])
    model.probability({"base_camera": shown})
    small = resized(np.moveaxis(shown, -1, 1), (8, 8))
    np.testing.assert_array_equal(seen[0]["base_camera"].numpy(), small)
    assert np.ptp(small) > 0
    load(write_fit(tmp_path / "fit", image_size=[3, 32, 32], threshold=0.5), tmp_path)


def test_other_numbers_of_channels_are_refused(tmp_path):
    other = write_fit(tmp_path / "fit", image_size=[1, SIZE, SIZE], threshold=0.5)
    with pytest.raises(ValueError, match=r"images of 1 channels \(reward.model.image_size\), but "
                                         r"those of 'base_camera' are \[16, 16, 3\]"):  # fmt: skip
        load(other, tmp_path)


def test_a_run_needs_a_checkpoint(fit, tmp_path):
    config = config_of(tmp_path / "run", fit)
    del config["reward"]["checkpoint_path"]
    with pytest.raises(ValueError, match=r"'classifier' has to be fitted beforehand: run `guerdon"):
        train(config, display="none")
    with pytest.raises(FileNotFoundError, match=r"nowhere has no reward: give a run .* of a fit"):
        train(config, "reward.checkpoint_path=nowhere", display="none")
    assert not (tmp_path / "run").exists()


def test_a_fit_is_for_a_reward_that_has_a_classifier(fit, tmp_path):
    config = config_of(tmp_path / "run", fit)
    config["reward"] = {"type": "env", "checkpoint_path": fit}
    with pytest.raises(ValueError, match=r"is a fitted classifier, but this run's reward is made "):
        train(config, display="none")


def test_terms_can_be_mixed_with_a_fit(fit, tmp_path):
    config = config_of(tmp_path / "run", fit)
    terms = {"classifier": {}, "env": {"weight": 0.1}}
    config["reward"] = {"terms": terms, "checkpoint_path": fit}
    assert train(config, display="none")["env_steps"] == 128
    (tmp_path / "other").mkdir()
    config = config_of(tmp_path / "other" / "run", fit)
    over = ("reward.terms.env.weight=0.1",)
    assert train(config, *over, display="none")["env_steps"] == 128
    one, other = (
        leaves(load_checkpoint(root / "run/checkpoints")[0]["policy"])
        for root in (tmp_path, tmp_path / "other")
    )
    assert all(same(one[key], other[key]) for key in one)


# --- resuming, and starting from the reward of a run


@pytest.mark.parametrize("policy", ["ppo", "sac"])
def test_two_halves_are_the_same_as_a_whole_run(policy, ran, fit, tmp_path):
    train(config_of(tmp_path / "run", fit, policy), "run.max_steps=64", display="none")
    resume(tmp_path / "run", "run.max_steps=128")
    assert_same_run(ran(policy), tmp_path / "run")


def test_an_online_run_resumes_exactly(fit, tmp_path):
    for name, steps in (("one", 128), ("run", 64)):
        config = config_of(tmp_path / name, fit, terminate="online", hold=2)
        train(config, f"run.max_steps={steps}", display="none")
    resume(tmp_path / "run", "run.max_steps=128")
    assert_same_run(tmp_path / "one", tmp_path / "run")


def test_another_run_can_use_its_reward(ran, tmp_path):
    config = config_of(tmp_path / "run", "")
    del config["reward"]
    train(config, from_reward=ran("ppo"), display="none")
    states = [
        leaves(load_checkpoint(folder / "checkpoints")[0]["policy"])
        for folder in (ran("ppo"), tmp_path / "run")
    ]
    assert all(same(states[0][key], states[1][key]) for key in states[0])


# --- nothing but the classifier


def final_policy(folder):
    return leaves(load_checkpoint(folder / "checkpoints")[0]["policy"])


@pytest.mark.parametrize(
    ("policy", "terminate"),
    [("ppo", "read"), ("sac", "read"), ("td3", "read"), ("dqn", "read"), ("ppo", "online")],
)
def test_the_environments_reward_and_success_change_no_weight(policy, terminate, fit, tmp_path):
    for name, lie in (("true", None), ("lied", 1)):
        config = config_of(tmp_path / name, fit, policy, terminate=terminate)
        config["env"]["kwargs"]["lie"] = lie
        train(config, display="none")
    one, other = final_policy(tmp_path / "true"), final_policy(tmp_path / "lied")
    assert one.keys() == other.keys()
    assert [key for key in one if not same(one[key], other[key])] == []


@pytest.mark.parametrize("policy", ["ppo", "sac"])
def test_another_classifier_changes_the_policy(policy, ran, tmp_path):
    other = write_fit(tmp_path / "fit", seed=8)
    train(config_of(tmp_path / "run", other, policy), display="none")
    one, other = final_policy(ran(policy)), final_policy(tmp_path / "run")
    assert any(not same(one[key], other[key]) for key in one if "module" in key)


def test_another_threshold_changes_the_policy(ran, fit, tmp_path):
    config = config_of(tmp_path / "run", fit, threshold=0.999, min_recall=0)
    train(config, display="none")
    one, other = final_policy(ran("ppo")), final_policy(tmp_path / "run")
    assert any(not same(one[key], other[key]) for key in one if "module" in key)
