import copy

import numpy as np
import pytest
import torch

from guerdon.config.errors import ConfigError
from guerdon.data import Batch, ReplayBuffer
from guerdon.reward import (
    REWARDS,
    ConstantReward,
    EpisodeRewardModel,
    Reward,
    RewardConfig,
    RewardModel,
    Setting,
    Term,
    make_reward,
)
from tests.reward.cases import CPU, filled_buffer, first_number, transitions
from tests.rounding import assert_close
from tests.training.running import run


class BonusConfig(RewardConfig):
    @classmethod
    def env_weight(cls, options):
        return options.get("beside", 1.0)

    beside: float = 1.0


class Learner(RewardModel):
    """Reward: how often it was trained; keeps a list of its calls."""

    Config = BonusConfig
    collects = ("obs",)

    def __init__(self, config, setting=None):
        super().__init__(config, setting)
        self.calls = []
        self.trained = 0

    def score(self, batch):  # noqa: ARG002
        return float(self.trained)

    def collect_data(self, batch):
        self.calls.append(("collect_data", batch))

    def pretrain(self):
        self.calls.append("pretrain")
        return {"loss": 3.0}

    def train(self):
        self.trained += 1
        self.calls.append("train")

    def clear_data(self, iter):  # noqa: A002 - the documented name
        self.calls.append(("clear_data", iter))

    def training_state(self):
        return {"trained": self.trained, "data": 5}

    def portable_state(self):
        return {"trained": self.trained}

    def load_training_state(self, state):
        self.trained = state["trained"]


@pytest.fixture(autouse=True)
def _registered():
    REWARDS.register("test_learner", Learner)
    yield
    del REWARDS._classes["test_learner"]


def resolved(section, data=None, **options):
    return make_reward(section, **options).resolve((data or transitions()).to_torch())


def rule(**options):
    return {"type": "function", "target": first_number, "fields": ("obs",), **options}


# --- the sum


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, [1.0, 2.0, 3.0, 4.0]),
        ({"type": "env"}, [1.0, 2.0, 3.0, 4.0]),
        ({"type": "constant", "value": 0.5}, [0.5] * 4),
        ({"type": "constant", "value": 0.5, "weight": 4.0}, [2.0] * 4),
        (rule(), [0.0, 1.0, 2.0, 3.0]),
        ({"terms": {"env": {}}}, [1.0, 2.0, 3.0, 4.0]),
        ({"terms": {"env": None}}, [1.0, 2.0, 3.0, 4.0]),
        ({"terms": {"constant": {"value": 3.0}, "env": {"weight": 0}}}, [3.0] * 4),
        ({"terms": {"env": {"weight": -1}, "mine": rule(weight=2.0)}}, [-1.0, 0.0, 1.0, 2.0]),
        ({"terms": {"a": {"type": "constant"}, "b": {"type": "constant", "value": 2}}}, [3.0] * 4),
    ],
)
def test_the_reward_is_a_weighted_sum(section, expected):
    assert resolved(section).rew.tolist() == expected


def test_the_environments_reward_and_each_term_before_its_weight_are_kept():
    terms = {"env": {"weight": 0.5}, "mine": rule(weight=2.0)}
    batch = resolved({"terms": terms, "scale": 10.0})
    assert batch.rew.tolist() == [5.0, 30.0, 55.0, 80.0]
    assert batch.rew_env.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch.rew_terms.env.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch.rew_terms.mine.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_the_environments_reward_of_a_batch_that_is_resolved_again_is_the_stored_one():
    batch = resolved({"type": "constant", "value": 7.0})
    again = make_reward({"type": "env"}).resolve(batch)
    assert again.rew.tolist() == again.rew_env.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_what_is_set_later_counts():
    reward = make_reward({"type": "env"})
    reward.scale = 0.5
    batch = reward.resolve(transitions().to_device(CPU))
    assert batch.rew.tolist() == [0.5, 1.0, 1.5, 2.0]
    assert batch.rew_env.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_resolving_leaves_its_input_alone():
    data = transitions()
    before = copy.deepcopy(data)
    resolved({"terms": {"env": {}, "mine": rule()}, "scale": 3.0, "clip": (-1, 1)}, data)
    assert data == before


def test_resolving_twice_is_resolving_once():
    reward = make_reward({"type": "env", "scale": 3.0})
    once = reward.resolve(transitions().to_torch())
    assert reward.resolve(once).rew.tolist() == once.rew.tolist() == [3.0, 6.0, 9.0, 12.0]


def test_a_bonus_written_flat_brings_the_environments_reward_with_it():
    reward = make_reward({"type": "test_learner", "weight": 0.5})
    reward.train()
    assert {name: term.weight for name, term in reward.terms.items()} == {
        "test_learner": 0.5,
        "env": 1.0,
    }
    assert reward.resolve(transitions().to_torch()).rew.tolist() == [1.5, 2.5, 3.5, 4.5]
    alone = make_reward({"type": "test_learner", "beside": 0.0})
    assert list(alone.terms) == ["test_learner"]


def test_a_bonus_among_terms_comes_alone():
    assert list(make_reward({"terms": {"test_learner": {}}}).terms) == ["test_learner"]


def test_every_term_has_a_seed_of_its_own():
    section = {"terms": {"test_learner": {}, "other": {"type": "test_learner"}}}
    seeds = [[model.setting.seed for model in make_reward(section, Setting(seed=seed)).models]
             for seed in (3, 3, 4)]  # fmt: skip
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 4


def test_a_model_that_was_made_is_the_only_term():
    reward = make_reward(ConstantReward({"value": 2.0, "type": "constant"}))
    assert list(reward.terms) == ["constant"]
    assert reward.resolve(transitions().to_torch()).rew.tolist() == [2.0] * 4


# --- stages


def test_the_sum_is_scaled_before_it_is_clipped():
    section = {
        "terms": {"env": {}, "constant": {"value": -2.0}},
        "scale": 10.0,
        "clip": (-5.0, 5.0),
    }
    assert resolved(section).rew.tolist() == [-5.0, 0.0, 5.0, 5.0]


def normalized(gamma=0.0, **section):
    section = section if "terms" in section else {"type": "env", **section}
    return make_reward({**section, "normalize": True}, Setting(gamma=gamma))


def test_the_sum_is_normalised_before_it_is_clipped():
    reward = normalized(clip=(0.0, 3.0))
    reward.collect_data(rollout([[1.0], [5.0]]))  # a standard deviation of 2
    batch = reward.resolve(transitions(8).to_torch())
    assert_close(batch.rew, [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.0, 3.0])
    assert batch.rew_env.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_scale_and_normalisation_multiply():
    reward = normalized(scale=3.0)
    reward.collect_data(rollout([[1.0], [5.0]]))
    rew = reward.resolve(transitions(2).to_torch()).rew
    assert_close(rew, [1.5, 3.0])


def rollout(rew, first=None, mask=None):
    """A rollout [T, B] that continues episodes, except where `first` says."""
    rew = np.array(rew)
    none = np.zeros(rew.shape, bool)
    first, mask = none if first is None else np.array(first), ~none if mask is None else mask
    return Batch(obs=rew, act=rew, rew=rew, terminated=none, truncated=none, first=first,
                 mask=np.array(mask))  # fmt: skip


def spread(reward):
    return 1.0 / reward.scaler.scale


def test_episodes_continue_in_the_next_rollout():
    reward = normalized(gamma=0.5)
    for rew in ([[4.0]], [[4.0]], [[4.0]]):  # one step at a time, as off-policy
        reward.collect_data(rollout(rew))
    assert spread(reward) == pytest.approx(np.std([4.0, 6.0, 7.0]))


def test_returns_start_anew_where_an_episode_begins():
    reward = normalized(gamma=0.5)
    reward.collect_data(rollout([[4.0], [4.0], [4.0]], first=[[True], [False], [True]]))
    reward.collect_data(rollout([[8.0]], first=[[True]]))
    assert spread(reward) == pytest.approx(np.std([4.0, 6.0, 4.0, 8.0]))


def test_rows_that_are_no_transitions_are_left_out_of_returns():
    reward = normalized(gamma=0.5)
    reward.collect_data(rollout([[4.0, 4.0], [4.0, 99.0]], mask=[[True, True], [True, False]]))
    reward.collect_data(rollout([[4.0, 4.0]]))
    assert spread(reward) == pytest.approx(np.std([4.0, 6.0, 7.0, 4.0, 6.0]))


def test_the_weighted_sum_is_what_is_normalised():
    terms = {"env": {"weight": 2.0}, "constant": {"value": 100.0}}
    reward = normalized(terms=terms)
    reward.collect_data(rollout([[1.0], [5.0]]))
    assert spread(reward) == pytest.approx(4.0)


def test_resolving_does_not_change_the_scale():
    reward = normalized()
    reward.collect_data(rollout([[1.0], [5.0]]))
    before = reward.scaler.scale
    reward.resolve(transitions().to_torch())
    assert reward.scaler.scale == before


# --- what it needs, and its life


def test_it_asks_for_the_fields_of_all_its_terms():
    section = {"terms": {"a": rule(fields=("obs", "act")), "b": rule(fields=("truncated", "obs"))}}
    assert make_reward(section).fields == ("act", "obs", "truncated")
    assert make_reward({"type": "constant"}).fields == ()


def test_it_collects_what_its_terms_do_and_what_normalising_needs():
    assert make_reward({"type": "constant"}).collects == ()
    section = {"terms": {"mine": rule(), "test_learner": {}, "other": rule(fields=("act",))}}
    assert make_reward(section).collects == ("obs",)
    assert make_reward({**section, "cotrain": False}).collects == ()
    assert make_reward({**section, "normalize": True}).collects == ("act", "obs", "rew")


def test_every_term_is_given_data_trained_and_cleared():
    reward = make_reward({"terms": {"test_learner": {}, "other": {"type": "test_learner"}}})
    data = rollout([[1.0]])
    assert reward.pretrain() == {"reward/test_learner/loss": 3.0, "reward/other/loss": 3.0}
    reward.collect_data(data)
    assert reward.train() == {}
    reward.clear_data(7)
    for model in reward.models:
        assert model.calls[1][0] == "collect_data"
        assert model.calls[1][1] is data
        assert model.calls[::2] == ["pretrain", "train"]
        assert model.calls[3] == ("clear_data", 7)


def test_models_that_are_not_cotrained_stay_as_they_are():
    reward = make_reward({"type": "test_learner", "cotrain": False})
    reward.collect_data(rollout([[1.0]]))
    assert reward.train() == {}
    assert reward.models[0].calls == []


def test_it_goes_on_where_its_state_was_taken():
    section = {"terms": {"test_learner": {}, "env": {}}, "normalize": True}
    one, other = make_reward(section), make_reward(section)
    one.collect_data(rollout([[1.0], [5.0]]))
    one.train()
    other.load_training_state(one.training_state())
    for reward in (one, other):
        reward.collect_data(rollout([[2.0]]))
    assert one.score(transitions()).tolist() == other.score(transitions()).tolist()
    assert other.terms["test_learner"].model.trained == 1
    portable = one.portable_state()
    assert portable["terms"] == {"test_learner": {"trained": 1}, "env": {}}
    other.load_training_state(portable)


def test_a_state_of_other_terms_is_refused():
    state = make_reward({"type": "constant"}).training_state()
    with pytest.raises(ValueError, match=r"\['constant'\].*\['env'\]"):
        make_reward({"type": "env"}).load_training_state(state)


# --- errors


def test_a_reward_without_terms_is_refused():
    with pytest.raises(ValueError, match="at least one term"):
        Reward({})
    with pytest.raises(ValueError, match="at least one term"):
        make_reward({"terms": {}})


def test_an_unknown_term_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match="constant"):
        make_reward({"terms": {"constnat": {}}})
    with pytest.raises(ConfigError, match="constant"):
        make_reward({"type": "constnat"})


def test_an_unknown_option_of_a_term_is_refused():
    with pytest.raises(ValueError, match="valeu"):
        make_reward({"terms": {"constant": {"valeu": 1.0}}})


def test_options_beside_terms_are_refused():
    with pytest.raises(ValueError, match="value"):
        make_reward({"terms": {"constant": {}}, "value": 3.0})


def test_making_a_reward_leaves_its_section_alone():
    section = {"terms": {"constant": {"value": 2.0, "weight": 3.0}}, "scale": 2.0}
    before = copy.deepcopy(section)
    make_reward(section)
    assert section == before


# --- the view of a buffer


@pytest.fixture
def view():
    reward = Reward({"constant": Term(ConstantReward({"value": 7.0}), 2.0)})
    return reward.view(filled_buffer(), CPU)


def test_rewards_are_resolved_however_the_view_is_read(view):
    rows = np.array([0, 2])
    assert view.rew[rows].tolist() == [14.0, 14.0]
    assert view.rew[3] == 14.0
    assert view[rows].rew.tolist() == [14.0, 14.0]
    assert view[1:3].rew.tolist() == [14.0, 14.0]
    assert view.get(rows, "rew").tolist() == [14.0, 14.0]
    assert view.get(rows, "rew_env").tolist() == [1.0, 3.0]
    assert view.get(rows, "rew_terms").constant.tolist() == [7.0, 7.0]


def test_samples_and_rollouts_of_the_view_are_resolved(view):
    batch, rows = view.sample(3)
    assert batch.rew.tolist() == [14.0] * 3
    assert batch.rew_env.tolist() == view[rows].rew_env.tolist()
    segments, _ = view.sample(3, length=2, fields=("obs",))
    assert segments.rew.shape == (2, 3)
    assert (segments.rew == 14.0).all()
    assert "act" not in segments
    whole, _ = view.rollout()
    assert whole.rew.tolist() == [[14.0]] * 4
    assert whole.mask.all()


def test_the_view_reads_what_the_reward_needs():
    view = make_reward(rule()).view(filled_buffer(), CPU)
    batch, rows = view.sample(3, fields=("act",))
    assert batch.rew.tolist() == rows.tolist()


def test_the_rest_of_the_view_is_the_buffers_own(view):
    assert len(view) == 4
    assert view.obs[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert view.get(np.array([1]), "obs").tolist() == [[1.0, -1.0]]
    assert view.next(1) == 2
    with pytest.raises(AttributeError, match="nothing_like_it"):
        view.nothing_like_it  # noqa: B018


def test_reading_the_view_leaves_the_buffer_alone():
    buffer = filled_buffer()
    reward = make_reward({"type": "env", "scale": 5.0, "clip": (0.0, 6.0)})
    assert reward.view(buffer, CPU)[:].rew.tolist() == [5.0, 6.0, 6.0, 6.0]
    assert buffer.rew.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_statistics_are_of_the_newest_rewards_without_masked_rows():
    reward = make_reward({"type": "function", "target": "tests.reward.cases:first_number"})
    assert reward.reward_stats() == {}
    rows = transitions(4)
    rows.mask = np.array([True, True, True, False])
    reward.resolve(rows.to_torch())
    expected = {"reward/mean": 1.0, "reward/std": pytest.approx(np.sqrt(2 / 3))}
    assert {name: float(x) for name, x in reward.reward_stats().items()} == expected
    reward.score(transitions(2))  # which no learner reads
    assert reward.reward_stats()["reward/mean"] == 1.0
    assert make_reward({"type": "env"}).reward_stats() == {}


def test_a_score_equals_the_resolved_reward():
    terms = {"constant": {"value": 3.0}, "env": {"weight": 2.0}}
    reward = make_reward({"terms": terms, "scale": 2})
    rows = transitions(3)
    assert reward.score(rows).tolist() == [10.0, 14.0, 18.0]
    assert reward.resolve(rows.to_torch()).rew.tolist() == [10.0, 14.0, 18.0]


def test_only_terms_of_the_environment_are_its_own_reward():
    assert make_reward({"type": "env", "scale": 3.0, "normalize": True}).is_env
    assert not make_reward({"terms": {"env": {}, "constant": {"weight": 0.0}}}).is_env


# --- terms that depend on the episode


class Counter(EpisodeRewardModel):
    """Reward: number of transitions that were annotated before."""

    reads = ("act",)
    annotations = ("number",)

    def new_memory(self, n_envs):  # noqa: ARG002
        return 0

    def annotate(self, batch, memory):
        number = np.full(batch.rew.shape, -1.0, np.float32)
        count = int(batch.mask.sum())
        number[batch.mask] = memory + np.arange(count)
        return {"number": number, "temporary": number + 0.5}, memory + count

    def score(self, batch):
        return batch.number

    def collect_data(self, batch):
        self.collected = batch


def counting(**options):
    return Reward(
        {"counter": Term(Counter({}), 1.0), "env": Term(ConstantReward({}), 0.0)}, **options
    )


def test_annotations_are_read_back_with_the_transitions():
    reward, buffer = counting(), ReplayBuffer(4, n_envs=2, seed=0)
    assert reward.fields == ("annotations",)
    assert reward.collects == ("act",)
    memory = reward.new_memory(2)
    for _ in range(3):  # the last row replaces the first one
        since, zeros = buffer.written, np.zeros(2)
        buffer.add(obs=zeros, act=zeros, rew=zeros, done=zeros == 0, obs_next=zeros)
        fresh, rows = buffer.rollout((*reward.collects, "rew"), since)
        fresh, memory = reward.annotate(fresh, memory)
        assert list(fresh.annotations.counter.keys()) == ["number"]
        buffer.annotate(rows, fresh.annotations.to_dict())
        reward.collect_data(fresh, rows, buffer)
        (counter, _) = reward.models
        assert counter.collected.temporary.tolist() == (counter.collected.number + 0.5).tolist()
    batch, _ = reward.view(buffer, CPU).rollout()
    assert batch.rew.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    batch, rows = reward.view(buffer, CPU).sample(9, fields=("obs",))
    assert batch.rew.tolist() == [{0: 4, 1: 2, 2: 5, 3: 3}[row] for row in rows.tolist()]


def test_rows_that_are_no_transitions_are_annotated_too():
    reward = counting()
    data = rollout([[1.0, 1.0], [1.0, 1.0]], mask=[[True, True], [True, False]])
    data, memory = reward.annotate(data, reward.new_memory(2))
    assert data.annotations.counter.number.tolist() == [[0.0, 1.0], [2.0, -1.0]]
    assert memory == {"counter": 3}
    assert reward.resolve(data.to_torch()).rew.tolist() == [[0.0, 1.0], [2.0, -1.0]]


def test_annotations_count_for_normalising():
    reward = counting(normalize=True, gamma=0.0)
    data = rollout([[9.0], [9.0], [9.0]])
    data, _ = reward.annotate(data, reward.new_memory(1))
    reward.collect_data(data)
    assert spread(reward) == pytest.approx(np.std([0.0, 1.0, 2.0]))


def test_models_that_are_not_cotrained_are_still_annotated():
    assert counting(cotrain=False).collects == ("act",)


def test_statistics_of_several_terms_have_the_mean_of_each_without_its_weight():
    rule = {"target": "tests.reward.cases:first_number", "weight": 0.5}
    reward = make_reward({"terms": {"function": rule, "constant": {"value": 3.0}}})
    rows = transitions(4)
    rows.mask = np.array([True, True, True, False])
    reward.resolve(rows.to_torch())
    found = {name: float(x) for name, x in reward.reward_stats().items()}
    assert found.pop("reward/std") == pytest.approx(0.5 * np.sqrt(2 / 3))
    assert found == {"reward/mean": 3.5, "reward/function/mean": 1.0, "reward/constant/mean": 3.0}


# --- NaN


def unsure(batch):
    """NaN where the observation is above 1."""
    return np.where(batch.obs[..., 0] > 1, np.nan, 1.0).astype(np.float32)


def unsure_reward(weight=1.0):
    function = {"target": unsure, "fields": ("obs",), "weight": weight}
    return make_reward({"terms": {"env": {}, "function": function}})


def observed(*numbers, mask=None):
    obs = torch.tensor(numbers)[:, None]
    batch = Batch(obs=obs, rew=torch.zeros(len(numbers)))
    return batch if mask is None else batch.replace(mask=torch.tensor(mask))


def test_a_term_that_is_not_finite_is_named_even_if_the_newest_rewards_are():
    reward = unsure_reward()
    reward.resolve(observed(0.0, 2.0))
    reward.resolve(observed(0.0, 0.5))
    with pytest.raises(RuntimeError, match="the reward term 'function' is not finite"):
        reward.reward_stats()


def test_rewards_that_are_not_learned_from_may_be_nan():
    reward = unsure_reward()
    reward.resolve(observed(0.0, 2.0, mask=[True, False]))
    assert reward.reward_stats()["reward/mean"] == 1.0
    reward = unsure_reward(weight=0.0)
    reward.resolve(observed(0.0, 2.0))
    assert reward.reward_stats()["reward/mean"] == 0.0


@pytest.mark.parametrize("case", ["ppo_continuous", "sac"])
def test_a_run_names_the_reward_that_is_not_finite(case, tmp_path):
    """And neither the learning rate nor the environment, which gets actions of broken weights."""
    reward = {"type": "function", "target": lambda batch: np.full_like(batch.rew, np.nan)}
    with pytest.raises(RuntimeError, match="the reward term 'function' is not finite: its score"):
        run(case, tmp_path / "run", reward=reward)
