"""What a probe says of rewards that are known by heart."""

import numpy as np
import pytest

from guerdon.config import compose
from guerdon.data import Batch, Demonstrations, save_demonstrations
from guerdon.envs import make_vec
from guerdon.training.experts import play_episodes
from guerdon.training.probe import probe
from tests.training.running import config_of


def section(**options):
    return {"type": "function", "target": "tests.training.test_probe:right", **options}


def right(data):
    """1 for the action that Identity shows."""
    shown = np.asarray(data.obs).argmax(-1)
    return (shown == np.asarray(data.act)).astype(np.float32)


def probed(reward, case="ppo", **sections):
    config = compose(config_of(case, "unused", reward=reward, **sections))
    return probe(config, episodes=6, steps=64, display="none")


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Of an expert of Identity."""
    env = make_vec("guerdon/Identity-v0", 2)
    episodes = play_episodes(lambda batch, _: Batch(act=batch.obs.argmax(-1)), env, 6, 0)
    folder = tmp_path_factory.mktemp("probe") / "data"
    spaces = env.observation_space, env.action_space
    save_demonstrations(Demonstrations(episodes, "guerdon/Identity-v0", *spaces), folder)
    return str(folder)


def test_a_true_reward_sees_the_difference():
    random, constant = probed(section()).rows
    assert (random.name, constant.name) == ("random actions", "constant actions")
    for row in (random, constant):
        assert row.per_step == pytest.approx(0.25, abs=0.15)
        assert row.per_episode == pytest.approx(10 * row.per_step)
        assert row.true_return == pytest.approx(row.per_episode)  # Identity pays the same
        assert (row.length, row.lowest, row.highest) == (10, 0.0, 1.0)


def test_a_constant_action_is_constant(monkeypatch):
    seen = []
    rule = "tests.training.test_probe:noted"
    monkeypatch.setitem(globals(), "SEEN", seen)
    probed({"type": "function", "target": rule})
    assert [len(set(acts.tolist())) for acts in seen[6:]] == [1] * 6
    assert len({int(acts[0]) for acts in seen[6:]}) > 1
    assert all(len(set(acts.tolist())) > 1 for acts in seen[:6])


def noted(data):
    SEEN.append(np.asarray(data.act))
    return np.zeros(data.rew.shape, np.float32)


SEEN = []


def test_demonstrations_are_held_against_the_same_with_actions_exchanged(demonstrations):
    reward = {"type": "gail", "expert_data_path": demonstrations, "hidden_size": 32,
              "update_per_collect": 150, "learning_rate": 0.003,
              "gradient_penalty": 0.0}  # fmt: skip
    found = probed(reward)
    real, permuted, random, constant = found.rows
    assert real.true_return == permuted.true_return == 10
    assert real.per_step > 1.5 * max(row.per_step for row in (permuted, random, constant))
    assert found.ranking == "A step of the demonstrations is worth more than any other."
    assert found.verdict.startswith(
        "Neither living nor ending is a reward by itself: every episode"
    )
    assert "has 10 steps" in found.verdict


def test_a_reward_that_cannot_tell_is_found_out(demonstrations):
    reward = {"terms": {
        "constant": {"value": 1.0},
        "gail": {"expert_data_path": demonstrations, "weight": 0.0},
    }}  # fmt: skip
    assert probed(reward).ranking == (
        "A step of the demonstrations is worth no more than one of permuted actions and random "
        "actions and constant actions."
    )


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (1.0, "It rewards survival as such: no step is worth less than 1 "),
        (-0.5, "It rewards ending as such: no step is worth more than -0.5 "),
        (0.0, "Neither living nor ending is a reward by itself: not all steps"),
    ],
)
def test_where_episodes_end_early_signs_matter(value, verdict):
    found = probed({"type": "constant", "value": value}, env={"id": "CartPole-v1"})
    assert found.verdict.startswith(verdict)
    assert found.ranking == "There are no demonstrations to compare with."


def test_signs_do_not_matter_where_ends_are_judged(tmp_path):
    env = make_vec("CartPole-v1", 2)
    space = env.action_space
    episodes = play_episodes(lambda *_: Batch(act=np.array([space.sample()] * 2)), env, 4, 0)
    save_demonstrations(Demonstrations(episodes), tmp_path / "data")
    reward = {"type": "gail", "expert_data_path": str(tmp_path / "data"), "absorbing": True}
    found = probed(reward, env={"id": "CartPole-v1"})
    assert found.verdict.endswith("judged, too (absorbing).")


def test_a_reward_that_reads_more_than_demonstrations_hold_is_refused():
    with pytest.raises(ValueError, match="cannot be probed: it reads info, which"):
        probed(section(fields=["info"]))
