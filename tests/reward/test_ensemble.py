import copy

import numpy as np
import pytest
import torch

from guerdon.config.schema import RewardConfig
from guerdon.reward import REWARDS, BaseRewardModel, Setting, create_reward_model, make_reward
from guerdon.reward.ensemble import EnsembleReward
from guerdon.reward.items import from_batch
from tests.reward.ranked import TWO, VECTOR, demonstrations, rollout, rows, same_states, setting


def make(of=None, imitate=True, **options):
    of = {"type": "gail", "hidden_size": [8], **(of or {})}
    model = create_reward_model({"type": "ensemble", "of": of, **options})
    model.setup(setting())
    if model.imitates and imitate:
        model.load_expert_data(demonstrations())
    return model


def trained(**options):
    model = make(**options)
    model.collect_data(rollout((20, 2)))
    return model, model.train()


def said(model, data):
    return np.stack([member.estimate(data).rew for member in model.members])


def test_it_is_the_mean_of_its_members():
    model, _ = trained()
    data = rows((4, 3))
    np.testing.assert_allclose(model.estimate(data).rew, said(model, data).mean(0), rtol=1e-6)


def test_pessimism_takes_off_a_part_of_the_spread():
    model, _ = trained(pessimism=1.5)
    data = rows((6,))
    each = said(model, data)
    wanted = each.mean(0) - 1.5 * each.std(0)
    np.testing.assert_allclose(model.estimate(data).rew, wanted, rtol=1e-5)
    assert (model.estimate(data).rew < each.mean(0)).all()


def test_tensors_are_answered_with_tensors():
    model, _ = trained(pessimism=1.0)
    data = rows((6,))
    rew = model.estimate(data.to_torch()).rew
    assert isinstance(rew, torch.Tensor)
    np.testing.assert_allclose(rew, model.estimate(data).rew, rtol=1e-5, atol=1e-6)


def test_members_are_different_ones():
    each = said(make(members=4), rows((6,)))
    assert len(each) == 4
    assert len({tuple(row) for row in each.tolist()}) == 4


def test_the_same_seed_makes_the_same_members():
    np.testing.assert_array_equal(said(make(), rows((6,))), said(make(), rows((6,))))


def test_members_are_trained_and_their_spread_is_told():
    model, metrics = trained()
    assert {"loss", "expert_accuracy", "policy_accuracy", "spread"} == metrics.keys()
    data = rollout((20, 2))
    spread = said(model, data).std(0).mean()
    assert float(metrics["spread"]) == pytest.approx(spread, rel=1e-4)
    assert [member.trained for member in model.members] == [16, 16, 16]


def test_metrics_are_means_over_the_members():
    model, alone = make(), make()
    for each in (model, alone):
        each.collect_data(rollout((20, 2)))
    losses = [float(member.train()["loss"]) for member in alone.members]
    assert float(model.train()["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_nothing_is_told_where_members_had_nothing_to_do():
    model = make({"train_every": 1000})
    model.collect_data(rollout((20, 2)))
    assert model.train() is None
    assert model.pretrain() is None


def test_members_forget_when_it_is_time():
    model, _ = trained(of={"clear_buffer_per_iters": 2})
    model.clear_data(3)
    assert [len(member.memory) for member in model.members] == [40] * 3
    model.clear_data(4)
    assert [len(member.memory) for member in model.members] == [0] * 3


def test_pretraining_reaches_the_members():
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


def test_demonstrations_are_read_once():
    model = make()
    assert len({id(member.demonstrations) for member in model.members}) == 1
    assert model.demonstrations is model.members[0].demonstrations
    assert make({"type": "rnd"}).demonstrations is None


@pytest.mark.parametrize("name", ["gail", "airl", "rnd", "pwil", "preference", "constant", "sac"])
def test_what_members_are_and_need_is_what_the_ensemble_is_and_needs(name):
    if name == "sac":
        with pytest.raises(ValueError, match="sac"):
            create_reward_model({"type": "ensemble", "of": {"type": name}})
        return
    model = create_reward_model({"type": "ensemble", "of": {"type": name}})
    alone = create_reward_model({"type": name})
    for flag in ("learns", "imitates", "episodic", "off_policy", "needs_log_prob", "fields"):
        assert getattr(model, flag) == getattr(alone, flag)


def test_fields_are_known_after_setup():
    assert set(make({"inputs": ["obs_next"]}).fields) == {"obs", "act", "obs_next"}


def test_models_that_change_the_data_cannot_be_members():
    for name in ("her", "sqil"):
        with pytest.raises(ValueError, match=f"{name!r} changes what is learned from"):
            create_reward_model({"type": "ensemble", "of": {"type": name}})


def test_options_of_members_are_checked():
    with pytest.raises(ValueError, match=r"unknown key 'of\.hidden_sise'"):
        make({"hidden_sise": 3})
    with pytest.raises(ValueError, match="'of' of an ensemble needs 'type'"):
        create_reward_model({"type": "ensemble", "of": {}})


def test_a_model_of_the_guides_style_can_be_a_member():
    class Doubled(BaseRewardModel):
        def estimate(self, data):
            return [{**item, "reward": 2 * item["reward"]} for item in data]

        def train(self):
            self.tb_logger.add_scalar("reward_model/loss", 3.0, 0)

        def collect_data(self, data):
            self.seen = len(data)

        def clear_data(self, iter):  # noqa: A002
            pass

    REWARDS.register("doubled", Doubled, override=True)
    model = create_reward_model({"type": "ensemble", "of": {"type": "doubled"}, "members": 2})
    model.setup(setting())
    data = rollout((3, 2))
    model.collect_data(data)
    np.testing.assert_allclose(model.estimate(data).rew, 2 * data.rew, rtol=1e-6)
    assert model.train() == {"loss": 3.0, "spread": 0.0}


def test_episodic_members_see_episodes_in_order():
    made = []
    for _ in range(2):
        made.append(create_reward_model({"type": "ensemble", "of": {"type": "pwil"}, "members": 2}))
        made[-1].setup(Setting(VECTOR, TWO, n_envs=2, seed=3, horizon=50))
        made[-1].load_expert_data(demonstrations())
    model, alone = made
    data = rollout((8, 2))
    scanned = model.scan(data)
    wanted = [
        member.estimate(data.replace(scanned=member.scan(data))).rew for member in alone.members
    ]
    np.testing.assert_allclose(scanned, np.mean(wanted, 0), rtol=1e-5)
    np.testing.assert_array_equal(model.estimate(data.replace(scanned=scanned)).rew, scanned)


def test_an_estimate_is_pure():
    model, _ = trained(pessimism=1.0)
    data = rows((4, 3), seed=7)
    before, state = copy.deepcopy(data), copy.deepcopy(model.state_dict())
    rew = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, rew)
    np.testing.assert_allclose(model.estimate(data[1:3]).rew, rew[1:3], rtol=1e-4, atol=1e-5)
    assert same_states(model.state_dict(), state)
    for name in before.keys():  # noqa: SIM118 - a Batch iterates over rows
        np.testing.assert_array_equal(data[name], before[name])


def test_lists_come_back_as_lists():
    model, _ = trained()
    data = rows((5,))
    found = model.estimate(from_batch(data))
    np.testing.assert_allclose(
        [float(item["reward"]) for item in found], model.estimate(data).rew, rtol=1e-5
    )
    model.collect_data(from_batch(data))
    assert "spread" in model.train()


def test_a_restored_ensemble_goes_on_exactly():
    model, _ = trained()
    restored = make()
    restored.load_state_dict(copy.deepcopy(model.state_dict()))
    for each in (model, restored):
        each.collect_data(rollout((10, 2), seed=5))
        each.train()
    assert same_states(model.state_dict(), restored.state_dict())


def test_a_state_of_another_number_of_members_is_refused():
    with pytest.raises(ValueError, match="saved ensemble has 3 members, but this one has 2"):
        make(members=2).load_state_dict(make().state_dict())


def test_it_is_a_term_like_any_other():
    reward = make_reward(
        {"type": "ensemble", "of": {"type": "constant", "value": 2.0}, "members": 2}
    )
    reward.setup(setting())
    assert reward.resolve(rows((3,))).rew.tolist() == [2.0, 2.0, 2.0]


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


def test_whatever_stands_for_a_member_there_is_an_answer_about_bonuses():
    for of in (None, 3, {}, {"type": "no_such"}, {"type": ["rnd"]}):
        assert not EnsembleReward.with_env_for({"of": of})


@pytest.mark.parametrize(
    ("of", "pretrains"),
    [
        ({"type": "trex"}, True),
        ({"type": "gail"}, False),
        ({"type": "preference"}, False),
        ({"type": "preference", "preferences_path": "a.jsonl"}, True),
    ],
    ids=str,
)
def test_it_is_pretrained_where_its_members_are(of, pretrains):
    assert create_reward_model({"type": "ensemble", "of": of}).pretrains is pretrains
