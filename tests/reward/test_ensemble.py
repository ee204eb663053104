import copy

import numpy as np
import pytest
import torch

from guerdon.compat.di_engine import BaseRewardModel
from guerdon.compat.di_engine.items import from_batch
from guerdon.config.schema import RewardConfig
from guerdon.data import Batch, Preference, ReplayBuffer, save_preferences
from guerdon.data.demonstrations import KEYS
from guerdon.reward import (
    REWARDS,
    EpisodeRewardModel,
    Setting,
    SuccessModel,
    create_reward_model,
    make_reward,
)
from guerdon.reward.ensemble import EnsembleConfig, EnsembleReward
from guerdon.reward.transitions import as_rollout
from tests.reward.ranked import TWO, VECTOR, demonstrations, rollout, rows, same_states, setting
from tests.rounding import assert_close


def make(of=None, **options):
    of = {"type": "gail", "hidden_size": [8], **(of or {})}
    model = create_reward_model({"type": "ensemble", "of": of, **options}, setting())
    if "demonstrations" in model.requirements(model.config):
        model.load_expert_data(demonstrations())
    return model


def trained(**options):
    model = make(**options)
    model.collect_data(rollout((20, 2)))
    return model, model.train()


def member_rewards(model, data):
    return np.stack([member.estimate(data).rew for member in model.members])


def test_it_is_the_mean_of_its_members():
    model, _ = trained()
    data = rows((4, 3))
    mean = member_rewards(model, data).mean(0)
    assert_close(model.estimate(data).rew, mean)


def test_pessimism_subtracts_a_multiple_of_the_standard_deviation():
    model, _ = trained(pessimism=1.5)
    data = rows((6,))
    each = member_rewards(model, data)
    wanted = each.mean(0) - 1.5 * each.std(0)
    assert_close(model.estimate(data).rew, wanted)
    assert (model.estimate(data).rew < each.mean(0)).all()


def test_tensors_are_scored_as_tensors():
    model, _ = trained(pessimism=1.0)
    data = rows((6,))
    rew = model.estimate(data.to_torch()).rew
    assert isinstance(rew, torch.Tensor)
    assert_close(rew, model.estimate(data).rew)


def test_members_differ():
    each = member_rewards(make(members=4), rows((6,)))
    assert len(each) == 4
    assert len({tuple(row) for row in each.tolist()}) == 4


def test_the_same_seed_makes_the_same_members():
    data = rows((6,))
    np.testing.assert_array_equal(member_rewards(make(), data), member_rewards(make(), data))


def test_members_are_trained_and_their_spread_is_reported():
    model, metrics = trained()
    assert {"loss", "expert_accuracy", "policy_accuracy", "spread"} == metrics.keys()
    spread = member_rewards(model, rollout((20, 2))).std(0).mean()
    assert float(metrics["spread"]) == pytest.approx(spread, rel=1e-4)
    assert [member.trained for member in model.members] == [16, 16, 16]
    assert model.fitted
    assert not make().fitted


def test_the_spread_is_that_of_transitions_alone():
    model, data = make(), rollout((20, 2))
    data.mask[:, 1] = False
    model.collect_data(data)
    spread = model.train()["spread"]
    each = member_rewards(model, data[:, :1]).std(0).mean()
    assert float(spread) == pytest.approx(each, rel=1e-4)
    model.collect_data(data.replace(mask=np.zeros((20, 2), bool)))
    assert model._fresh is None


def test_metrics_are_means_over_the_members():
    model, alone = make(), make()
    for each in (model, alone):
        each.collect_data(rollout((20, 2)))
    losses = [float(member.train()["loss"]) for member in alone.members]
    assert float(model.train()["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_there_are_no_metrics_if_no_member_was_trained():
    model = make({"train_every": 1000})
    model.collect_data(rollout((20, 2)))
    assert model.train() is None
    assert model.pretrain() is None


def test_members_drop_data_when_it_is_time():
    model, _ = trained(of={"clear_buffer_per_iters": 2})
    model.clear_data(3)
    assert [len(member.memory) for member in model.members] == [40] * 3
    model.clear_data(4)
    assert [len(member.memory) for member in model.members] == [0] * 3


def test_members_are_pretrained():
    of = {
        "type": "trex",
        "update_per_collect": 20,
        "num_snippets": 100,
        "min_snippet_length": 5,
        "hidden_size": [8],
    }
    model = make(of)
    metrics = model.pretrain()
    assert metrics["steps"] == 20
    assert model.train() is None


def test_members_are_prepared(monkeypatch):
    model, prepared = make(), []
    monkeypatch.setattr(type(model.members[0]), "prepare", lambda self: prepared.append(self))
    model.prepare()
    assert prepared == model.members


def test_demonstrations_are_read_once():
    model = make()
    assert len({id(member.demonstrations) for member in model.members}) == 1
    assert model.demonstrations is model.members[0].demonstrations
    assert make({"type": "rnd"}).demonstrations is None


@pytest.mark.parametrize("name", ["gail", "airl", "rnd", "pwil", "preference", "constant"])
def test_it_has_the_needs_and_the_role_of_its_members(name):
    run = Setting(VECTOR, TWO, horizon=50)
    model = create_reward_model({"type": "ensemble", "of": {"type": name}}, run)
    member = create_reward_model({"type": name}, run)
    assert model.requirements(model.config) == member.requirements(member.config)
    assert bool(model.annotations) == isinstance(member, EpisodeRewardModel)
    assert (model.fields, model.history) == (member.fields, member.history)
    assert bool(model.collects) == bool(member.collects)
    assert set(model.collects) >= set(member.collects)


def test_what_members_need_is_checked():
    of = {"type": "pwil"}
    with pytest.raises(ValueError, match="'ensemble' needs the maximum length of an episode"):
        make_reward({"type": "ensemble", "of": of}, Setting(VECTOR, TWO))
    of = {"type": "gail", "absorbing": True}
    for section in (of, {"type": "ensemble", "of": of}):
        with pytest.raises(
            ValueError, match=r"'reward\.clip' would clip the absorbing-state value of 'ensemble'"
        ):
            make_reward({"type": "ensemble", "of": section, "clip": (-1, 1)}, setting())


def test_fields_are_those_of_the_members():
    assert set(make({"inputs": ["obs_next"]}).fields) == {"obs", "act", "obs_next"}


def test_models_that_change_the_data_cannot_be_members():
    for name in ("her", "sqil"):
        with pytest.raises(ValueError, match=f"{name!r} changes the training data"):
            create_reward_model({"type": "ensemble", "of": {"type": name}})
    with pytest.raises(ValueError, match="'classifier' is an ensemble by itself"):
        create_reward_model({"type": "ensemble", "of": {"type": "classifier"}})


@pytest.fixture
def register():
    """Registers a class for one test."""
    yield lambda kind: REWARDS.register("test_member", kind)
    REWARDS._classes.pop("test_member", None)


def test_models_that_end_episodes_cannot_be_members(register):
    register(type("Ending", (SuccessModel,), {}))
    with pytest.raises(ValueError, match="'test_member' changes the training data"):
        create_reward_model({"type": "ensemble", "of": {"type": "test_member"}})


def test_options_of_members_are_checked():
    with pytest.raises(ValueError, match=r"unknown key 'of\.hidden_sise'"):
        make({"hidden_sise": 3})
    with pytest.raises(ValueError, match="'of' of an ensemble needs 'type'"):
        create_reward_model({"type": "ensemble", "of": {}})
    with pytest.raises(ValueError, match="sac"):
        create_reward_model({"type": "ensemble", "of": {"type": "sac"}})


def test_a_model_in_the_style_of_the_guide_can_be_a_member(register):
    class Doubled(BaseRewardModel):
        def estimate(self, data):
            return [{**item, "reward": 2 * item["reward"]} for item in data]

        def train(self):
            self.tb_logger.add_scalar("reward_model/loss", 3.0, 0)

        def collect_data(self, data):
            self.seen = len(data)

        def clear_data(self, iter):  # noqa: A002
            pass

    register(Doubled)
    options = {"type": "ensemble", "of": {"type": "test_member"}, "members": 2}
    model = create_reward_model(options, setting())
    data = rollout((3, 2))
    model.collect_data(data)
    assert_close(model.estimate(data).rew, 2 * data.rew)
    assert model.train() == {"loss": 3.0, "spread": 0.0}
    assert [member.model.seen for member in model.members] == [6, 6]


# --- members that depend on the episode


class Counting(EpisodeRewardModel):
    """Reward: how many steps the episode has had; knows what was collected last."""

    collects = ("obs",)
    annotations = ("count",)
    collected = None

    def new_memory(self, n_envs):
        return np.zeros(n_envs)

    def annotate(self, batch, memory):
        counts = []
        for first in batch.first:
            memory = np.where(first, 0, memory) + 1
            counts.append(memory)
        count = np.stack(counts).astype(np.float32)
        return {"count": count, "seeded": count + self.setting.seed % 7}, memory

    def score(self, batch):
        return batch["count"]

    def collect_data(self, batch):
        self.collected = batch

    def train(self):
        return {"loss": 0.0}


def pwil_ensemble(**options):
    section = {"type": "ensemble", "of": {"type": "pwil", **options}, "members": 2}
    reward = make_reward(section, Setting(VECTOR, TWO, n_envs=2, seed=3, horizon=50))
    reward.models[0].load_expert_data(demonstrations())
    return reward


def test_members_that_depend_on_the_episode_are_annotated_in_order():
    reward = pwil_ensemble(sample_size=8)
    (model,) = reward.models
    buffer, data = ReplayBuffer(32, n_envs=2, seed=0), rows((16, 2))
    memory, wanted = reward.new_memory(2), []
    memories = [member.new_memory(2) for member in model.members]
    for part in (slice(0, 7), slice(7, 16)):
        since = buffer.written
        for step in range(16)[part]:
            obs_next = data.obs[min(step + 1, 15)]
            buffer.add({key: data[key][step] for key in KEYS} | {"obs_next": obs_next})
        fields = (*reward.collects, "rew", "terminated", "truncated")
        fresh, places = buffer.rollout(fields, since)
        annotated, memory = reward.annotate(fresh, memory)
        buffer.annotate(places, annotated.annotations.to_dict())
        reward.collect_data(annotated, places, buffer)
        found = [m.annotate(fresh, old) for m, old in zip(model.members, memories, strict=True)]
        memories = [after for _, after in found]
        wanted.append(np.mean([column["coupling"] for column, _ in found], 0))
    view = reward.view(buffer, torch.device("cpu"))
    assert_close(view.rollout()[0].rew, np.concatenate(wanted))
    batch = buffer.rollout()[0].annotations.ensemble
    assert set(batch.keys()) == {"0.coupling", "1.coupling"}
    assert (batch["0.coupling"] != batch["1.coupling"]).any()


@pytest.mark.parametrize("shape", [(8,), (8, 2)])
def test_members_score_transitions_of_no_run_as_whole_episodes(shape):
    (model,), data = pwil_ensemble().models, rows(shape)
    mean = member_rewards(model, data).mean(0)
    assert_close(model.estimate(data).rew, mean)


def test_columns_that_are_not_stored_reach_the_members(register):
    register(Counting)
    of = {"type": "ensemble", "of": {"type": "test_member"}, "members": 2}
    reward = make_reward({"type": "ensemble", "of": of, "members": 1}, setting())
    (model,), data = reward.models, as_rollout(rollout((3, 2)), ("obs",))
    assert model.annotations == ("0.0.count", "0.1.count")
    data, _ = reward.annotate(data, reward.new_memory(2))
    reward.collect_data(data)
    for member in model.members[0].members:
        counts = np.array([[1, 1], [2, 2], [3, 3]])
        np.testing.assert_array_equal(member.collected["count"], counts)
        np.testing.assert_array_equal(member.collected.seeded, counts + member.setting.seed % 7)
    assert model.train() == {"loss": 0.0, "spread": 0.0}


# --- the contract


def test_estimating_is_pure():
    model, _ = trained(pessimism=1.0)
    data = rows((4, 3), seed=7)
    before, state = copy.deepcopy(data), copy.deepcopy(model.training_state())
    rew = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, rew)
    assert_close(model.estimate(data[1:3]).rew, rew[1:3], rtol=1e-4, atol=1e-5)
    assert same_states(model.training_state(), state)
    assert data == before


def test_lists_come_back_as_lists():
    model, _ = trained()
    data = rows((5,))
    found = [float(item["reward"]) for item in model.estimate(from_batch(data))]
    assert_close(found, model.estimate(data).rew)


def test_a_restored_ensemble_resumes_exactly():
    model, _ = trained()
    restored = make()
    restored.load_training_state(copy.deepcopy(model.training_state()))
    for each in (model, restored):
        each.collect_data(rollout((10, 2), seed=5))
        each.train()
    assert same_states(model.training_state(), restored.training_state())


def test_its_portable_state_is_that_of_its_members():
    model, _ = trained()
    states = [member.portable_state() for member in model.members]
    assert same_states(model.portable_state()["members"], states)
    assert not same_states(model.portable_state(), model.training_state())


def test_a_state_of_another_number_of_members_is_refused():
    with pytest.raises(ValueError, match="saved ensemble has 3 members, but this one has 2"):
        make(members=2).load_training_state(make().training_state())


def test_it_is_a_term_like_any_other():
    of = {"type": "constant", "value": 2.0}
    reward = make_reward({"type": "ensemble", "of": of, "members": 2}, setting())
    assert reward.resolve(rows((3,)).to_torch()).rew.tolist() == [2.0, 2.0, 2.0]
    assert reward.collects == ()


@pytest.mark.parametrize(
    ("of", "terms"),
    [
        ({"type": "rnd"}, ["ensemble", "env"]),
        ({"type": "ensemble", "of": {"type": "icm"}}, ["ensemble", "env"]),
        ({"type": "constant"}, ["ensemble"]),
    ],
    ids=["rnd", "of an ensemble", "constant"],
)
def test_the_environments_reward_comes_with_bonuses(of, terms):
    config = RewardConfig.model_validate({"type": "ensemble", "of": of})
    assert list(config.terms) == terms


def test_options_that_are_wrong_have_no_weight_of_the_environment():
    for of in (None, 3, {}, {"type": "no_such"}, {"type": ["rnd"]}):
        assert EnsembleConfig.env_weight({"of": of}) == 0.0
    assert EnsembleReward.Config is EnsembleConfig


def test_it_can_be_pretrained_if_its_members_can(tmp_path):
    first, second = (Batch(obs=each.obs, act=each.act) for each in (rows((6,)), rows((6,), seed=1)))
    path = tmp_path / "a.jsonl"
    save_preferences(path, [Preference("a", first, second, 1.0)])
    for of, can_pretrain in (
        ({"type": "trex"}, True),
        ({"type": "gail"}, False),
        ({"type": "preference"}, False),
        ({"type": "preference", "preferences_path": str(path)}, True),
    ):
        model = create_reward_model({"type": "ensemble", "of": of}, setting())
        assert model.can_pretrain is can_pretrain
