"""What a probe says of rewards that are known by heart."""

from typing import ClassVar

import numpy as np
import pytest

from guerdon.config import compose
from guerdon.data import Batch, Demonstrations, save_demonstrations
from guerdon.envs import make_vec
from guerdon.lab.probe import DEMONSTRATIONS, Probed, _ranking, probe
from guerdon.reward import RewardModel, register_reward_model
from guerdon.training.replay import play_episodes
from tests.training.running import config_of


def section(**options):
    return {"type": "function", "target": "tests.lab.test_probe:right", **options}


def right(data):
    """1 for the action that Identity shows."""
    shown = np.asarray(data.obs).argmax(-1)
    return (shown == np.asarray(data.act)).astype(np.float32)


def probed(reward, case="ppo", **sections):
    config = compose(config_of(case, "unused", reward=reward, **sections))
    return probe(config, episodes=6, steps=64, display="none")


def test_a_reward_that_is_gone_is_named_with_its_key(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"^'reward\.checkpoint_path': .*gone has no reward"
    ):
        probed({**section(), "checkpoint_path": str(tmp_path / "gone")})


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
    rule = "tests.lab.test_probe:noted"
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
    assert found.ranking == (
        "Demonstrations have the highest mean reward per step, by more than the margin."
    )
    assert found.conclusion.startswith(
        "Neither survival nor termination is rewarded by itself: every episode"
    )
    assert "has 10 steps" in found.conclusion


def test_a_reward_that_cannot_tell_is_found_out(demonstrations):
    reward = {"terms": {
        "constant": {"value": 1.0},
        "gail": {"expert_data_path": demonstrations, "weight": 0.0},
    }}  # fmt: skip
    assert probed(reward).ranking == (
        "Demonstrations have a mean reward of 1 per step, not significantly higher than permuted "
        "actions (1, margin 0) and random actions (1, margin 0) and constant actions (1, margin 0)."
    )


def test_demonstrations_have_to_score_higher_by_a_margin():
    def row(name, per_step, error):
        return Probed(name, per_step, error, 1.0, 1.0, 1.0, 0.0, 1.0, 0.5, 0.5)

    others = [row("random actions", 0.5, 0.1)]
    assert "not significantly higher" in _ranking([row(DEMONSTRATIONS, 0.75, 0.1), *others])
    assert "highest mean reward per step" in _ranking([row(DEMONSTRATIONS, 0.8, 0.1), *others])


@pytest.mark.parametrize(
    ("value", "start", "shares"),
    [
        (1.0, "Survival is rewarded by itself:", (100, 0)),
        (-0.5, "Termination is rewarded by itself:", (0, 100)),
        (0.0, "Neither survival nor termination is rewarded by itself:", (0, 0)),
    ],
)
def test_where_episodes_end_early_signs_matter(value, start, shares):
    found = probed({"type": "constant", "value": value}, env={"id": "CartPole-v1"})
    above, below = shares
    assert found.conclusion.startswith(start)
    assert found.conclusion.endswith(
        f": {above}% of the steps have a higher reward than a step after the end of an episode "
        f"(0), {below}% a lower one."
    )
    assert found.ranking == "There are no demonstrations to compare with."


def mostly(data):
    """1, but for one step of longer episodes."""
    rew = np.ones(data.rew.shape, np.float32)
    rew[20:21] = -1000.0
    return rew


def half(data):
    return np.where(np.arange(len(data.rew)) % 2, 1.0, -1.0)


@pytest.mark.parametrize(("rule", "conclusion"), [("mostly", "Survival"), ("half", "Neither")])
def test_a_few_steps_do_not_decide_but_many_do(rule, conclusion):
    reward = {"type": "function", "target": f"tests.lab.test_probe:{rule}"}
    found = probed(reward, env={"id": "CartPole-v1"})
    assert found.conclusion.startswith(conclusion)
    assert min(row.lowest for row in found.rows) < 0 < min(row.highest for row in found.rows)


def paid_at_the_end(data):
    """1 a step, and at an end what `PAID` for each step after it amounts to."""
    return np.asarray(1 + PAID * 0.99 / 0.01 * np.asarray(data.terminated), np.float32)


PAID = 0.0


@pytest.mark.parametrize(
    ("paid", "start", "end"),
    [
        (2.0, "Termination is rewarded", "of an episode (2), 100% a lower one."),
        (0.5, "Survival is rewarded", "of an episode (0.5), 0% a lower one."),
    ],
)
def test_steps_are_held_against_what_comes_after_an_end(paid, start, end, monkeypatch):
    monkeypatch.setitem(globals(), "PAID", paid)
    reward = {"type": "function", "target": "tests.lab.test_probe:paid_at_the_end"}
    found = probed(reward, env={"id": "CartPole-v1"})
    assert found.conclusion.startswith(start)
    assert found.conclusion.endswith(end)
    assert found.after == pytest.approx(paid, rel=1e-4)
    assert {row.per_step for row in found.rows} == {1.0}


@pytest.mark.parametrize("members", [0, 2])
def test_absorbing_states_and_demonstrations_of_members_are_found(members, tmp_path):
    env = make_vec("CartPole-v1", 2)
    space = env.action_space
    episodes = play_episodes(lambda *_: Batch(act=np.array([space.sample()] * 2)), env, 4, 0)
    save_demonstrations(Demonstrations(episodes), tmp_path / "data")
    reward = {"type": "gail", "expert_data_path": str(tmp_path / "data"), "absorbing": True}
    if members:
        reward = {"type": "ensemble", "of": reward, "members": members}
    found = probed(reward, env={"id": "CartPole-v1"})
    assert found.rows[0].name == "demonstrations"
    assert found.after > 0.1
    assert f"a step after the end of an episode ({found.after:.3g})" in found.conclusion


class Forgetful(RewardModel):
    """Notes when it is told to forget."""

    collects = ("obs",)
    told: ClassVar = []

    def score(self, data):  # noqa: ARG002
        return 0.0

    def clear_data(self, iter):  # noqa: A002
        self.told.append(iter)


@pytest.mark.parametrize(("case", "told"), [("ppo", [0, 1]), ("sac", [0, 2, 4, 6, 8, 10, 12, 14])])
def test_models_are_told_to_forget_as_in_a_run(case, told):
    Forgetful.told.clear()
    register_reward_model("test_forgetful", Forgetful, override=True)
    probed({"type": "test_forgetful"}, case)
    assert Forgetful.told[: len(told)] == told


def test_a_reward_that_reads_more_than_demonstrations_hold_is_refused():
    with pytest.raises(ValueError, match="cannot be probed: it reads info, which"):
        probed(section(fields=["info"]))


def test_observations_with_several_parts_are_played_too():
    found = probe(compose("bitflip_dqn", ["env.n_envs=2"]), episodes=3, steps=0, display="none")
    assert [row.length for row in found.rows] == [15.0] * len(found.rows)
