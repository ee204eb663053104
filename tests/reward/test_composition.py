import copy

import numpy as np
import pytest
import torch

from guerdon.config.errors import ConfigError
from guerdon.data import Batch
from guerdon.reward import REWARDS, ConstantReward, Reward, RewardModel, Term, make_reward
from tests.reward.cases import filled_buffer, first_number, transitions


class Learner(RewardModel):
    """Is worth how often it was trained, and notes what it is called for."""

    learns = True
    with_env = True

    def __init__(self, *args):
        super().__init__(*args)
        self.calls = []
        self.trained = 0

    def estimate(self, data):
        return data.replace(rew=np.full(data.rew.shape, float(self.trained), np.float32))

    def collect_data(self, data):
        self.calls.append(("collect_data", data))

    def train(self):
        self.trained += 1
        self.calls.append("train")

    def clear_data(self, iter):  # noqa: A002 - the documented name
        self.calls.append(("clear_data", iter))

    def state_dict(self):
        return {"trained": self.trained}

    def load_state_dict(self, state):
        self.trained = state["trained"]


@pytest.fixture(autouse=True)
def _registered():
    REWARDS.register("test_learner", Learner)
    yield
    del REWARDS._classes["test_learner"]


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
    assert make_reward(section).resolve(transitions()).rew.tolist() == expected


def test_what_was_paid_and_each_term_before_its_weight_stay_beside_it():
    batch = make_reward(
        {"terms": {"env": {"weight": 0.5}, "mine": rule(weight=2.0)}, "scale": 10.0}
    ).resolve(transitions())
    assert batch.rew.tolist() == [5.0, 30.0, 55.0, 80.0]
    assert batch.rew_env.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch.rew_terms.env.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch.rew_terms.mine.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_resolving_leaves_its_input_alone():
    data = transitions()
    before = copy.deepcopy(data)
    make_reward({"terms": {"env": {}, "mine": rule()}, "scale": 3.0, "clip": (-1, 1)}).resolve(data)
    assert set(data.keys()) == set(before.keys())
    for key in data.keys():  # noqa: SIM118 - a Batch iterates over rows
        np.testing.assert_array_equal(data[key], before[key])


def test_resolving_twice_is_resolving_once():
    reward = make_reward({"type": "env", "scale": 3.0})
    data = transitions()
    assert reward.resolve(data).rew.tolist() == reward.resolve(data).rew.tolist()


def test_a_bonus_written_flat_brings_the_environments_reward_with_it():
    reward = make_reward({"type": "test_learner", "weight": 0.5})
    reward.train()
    assert {name: term.weight for name, term in reward.terms.items()} == {
        "test_learner": 0.5,
        "env": 1.0,
    }
    assert reward.resolve(transitions()).rew.tolist() == [1.5, 2.5, 3.5, 4.5]


def test_a_bonus_among_terms_comes_alone():
    assert list(make_reward({"terms": {"test_learner": {}}}).terms) == ["test_learner"]


def test_tensors_are_resolved_as_tensors():
    data = transitions()
    data = Batch(**{key: torch.as_tensor(data[key]) for key in data.keys()})  # noqa: SIM118
    section = {"terms": {"env": {"weight": 0.5}, "constant": {"value": 1.0}}, "clip": (0.0, 2.5)}
    rew = make_reward(section).resolve(data).rew
    assert isinstance(rew, torch.Tensor)
    assert rew.tolist() == [1.5, 2.0, 2.5, 2.5]


# --- stages


def test_the_sum_is_scaled_before_it_is_clipped():
    section = {
        "terms": {"env": {}, "constant": {"value": -2.0}},
        "scale": 10.0,
        "clip": (-5.0, 5.0),
    }
    assert make_reward(section).resolve(transitions()).rew.tolist() == [-5.0, 0.0, 5.0, 5.0]


def test_the_sum_is_normalised_before_it_is_clipped():
    reward = make_reward({"type": "env", "normalize": True, "clip": (0.0, 3.0)}, gamma=0.0)
    reward.collect_data(rollout([[1.0], [5.0]]))  # a spread of 2
    batch = reward.resolve(transitions(8))
    np.testing.assert_allclose(batch.rew, [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.0, 3.0], rtol=1e-6)
    assert batch.rew_env.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_scale_and_normalisation_multiply():
    reward = make_reward({"type": "env", "normalize": True, "scale": 3.0}, gamma=0.0)
    reward.collect_data(rollout([[1.0], [5.0]]))
    np.testing.assert_allclose(reward.resolve(transitions(2)).rew, [1.5, 3.0], rtol=1e-6)


def rollout(rew, terminated=None, truncated=None, cut=None, mask=None):
    """A rollout [T, B] whose newest rows are cut, as a buffer gives it."""
    rew = np.array(rew)
    none = np.zeros(rew.shape, bool)
    terminated, truncated = (none if x is None else np.array(x) for x in (terminated, truncated))
    ends = terminated | truncated
    if cut is None:
        cut = ends.copy()
        cut[-1] = True
    mask = ~none if mask is None else np.array(mask)
    fields = {"terminated": terminated, "truncated": truncated, "cut": np.array(cut), "mask": mask}
    return Batch(obs=rew, act=rew, rew=rew, **fields)


def spread(reward):
    return 1.0 / reward.scaler.scale


def test_a_rollout_that_ends_does_not_end_its_episodes():
    reward = make_reward({"type": "env", "normalize": True}, gamma=0.5)
    for rew in ([[4.0]], [[4.0]], [[4.0]]):  # one step at a time, as off-policy
        reward.collect_data(rollout(rew))
    assert spread(reward) == pytest.approx(np.std([4.0, 6.0, 7.0]))


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_an_episode_that_ends_with_its_rollout_is_over(kind):
    reward = make_reward({"type": "env", "normalize": True}, gamma=0.5)
    reward.collect_data(rollout([[4.0], [4.0]], **{kind: [[False], [True]]}))
    reward.collect_data(rollout([[4.0]]))
    assert spread(reward) == pytest.approx(np.std([4.0, 6.0, 4.0]))


def test_an_episode_that_was_cut_in_the_middle_is_over():
    reward = make_reward({"type": "env", "normalize": True}, gamma=0.5)
    reward.collect_data(rollout([[4.0], [4.0], [4.0]], cut=[[False], [True], [True]]))
    assert spread(reward) == pytest.approx(np.std([4.0, 6.0, 4.0]))


def test_episodes_go_on_past_rows_that_only_fill_up():
    reward = make_reward({"type": "env", "normalize": True}, gamma=0.5)
    mask = [[True, True], [True, False]]
    cut = [[False, True], [True, True]]
    reward.collect_data(rollout([[4.0, 4.0], [4.0, 99.0]], cut=cut, mask=mask))
    reward.collect_data(rollout([[4.0, 4.0]]))
    assert spread(reward) == pytest.approx(np.std([4.0, 6.0, 7.0, 4.0, 6.0]))


def test_broken_off_episodes_start_anew():
    reward = make_reward({"type": "env", "normalize": True}, gamma=0.5)
    reward.collect_data(rollout([[4.0]]))
    reward.break_off()
    reward.collect_data(rollout([[8.0]]))
    assert spread(reward) == pytest.approx(np.std([4.0, 8.0]))


def test_the_weighted_sum_is_what_is_normalised():
    terms = {"env": {"weight": 2.0}, "constant": {"value": 100.0}}
    reward = make_reward({"terms": terms, "normalize": True}, gamma=0.0)
    reward.collect_data(rollout([[1.0], [5.0]]))
    assert spread(reward) == pytest.approx(4.0)


def test_resolving_does_not_change_the_scale():
    reward = make_reward({"type": "env", "normalize": True})
    reward.collect_data(rollout([[1.0], [5.0]]))
    before = reward.scaler.scale
    reward.resolve(transitions())
    assert reward.scaler.scale == before


# --- what it needs, and its life


def test_it_asks_for_the_fields_of_all_its_terms():
    section = {"terms": {"a": rule(fields=("obs", "act")), "b": rule(fields=("truncated", "obs"))}}
    assert make_reward(section).fields == ("act", "obs", "truncated")
    assert make_reward({"type": "constant"}).fields == ()


def test_it_learns_if_a_term_does_or_if_it_normalises():
    assert not make_reward({"type": "constant"}).learns
    assert make_reward({"terms": {"env": {}, "test_learner": {}}}).learns
    assert make_reward({"type": "env", "normalize": True}).learns


def test_every_term_is_given_data_trained_and_cleared():
    reward = make_reward({"terms": {"test_learner": {}, "other": {"type": "test_learner"}}})
    data = rollout([[1.0]])
    reward.collect_data(data)
    reward.train()
    reward.clear_data(7)
    for model, _ in reward.terms.values():
        assert model.calls[0][0] == "collect_data"
        assert model.calls[0][1] is data
        assert model.calls[1:] == ["train", ("clear_data", 7)]


def test_a_rollout_on_a_device_comes_to_models_as_arrays():
    reward = make_reward({"type": "test_learner"})
    reward.collect_data(rollout([[1.0]]).to_torch())
    ((_, data),) = reward.terms["test_learner"].model.calls
    assert isinstance(data.mask, np.ndarray)
    assert isinstance(data.rew, np.ndarray)


def test_it_goes_on_where_its_state_was_taken():
    section = {"terms": {"test_learner": {}, "env": {}}, "normalize": True}
    one, other = make_reward(section), make_reward(section)
    one.collect_data(rollout([[1.0], [5.0]]))
    one.train()
    other.load_state_dict(one.state_dict())
    for reward in (one, other):
        reward.collect_data(rollout([[2.0]]))
    assert one.resolve(transitions()).rew.tolist() == other.resolve(transitions()).rew.tolist()
    assert other.terms["test_learner"].model.trained == 1


def test_a_state_of_other_terms_is_refused():
    state = make_reward({"type": "constant"}).state_dict()
    with pytest.raises(ValueError, match=r"\['constant'\].*\['env'\]"):
        make_reward({"type": "env"}).load_state_dict(state)


# --- errors


def test_a_reward_without_terms_is_refused():
    with pytest.raises(ValueError, match="one term or more"):
        Reward({})
    with pytest.raises(ValueError, match="one term or more"):
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
    return reward.view(filled_buffer())


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
    view = make_reward(rule()).view(filled_buffer())
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
    assert reward.view(buffer)[:].rew.tolist() == [5.0, 6.0, 6.0, 6.0]
    assert buffer.rew.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_what_was_seen_last_is_summed_up_without_masked_rows():
    reward = make_reward({"type": "function", "target": "tests.reward.cases:first_number"})
    assert reward.seen() == {}
    rows = transitions(4)
    rows.mask = np.array([True, True, True, False])
    reward.resolve(rows)
    assert reward.seen() == {"reward/mean": 1.0, "reward/std": np.float32(np.sqrt(2 / 3))}
    reward.score(transitions(2))  # nobody learns from that
    assert reward.seen()["reward/mean"] == 1.0
    reward.resolve(rows.to_torch())
    assert reward.seen()["reward/std"].item() == pytest.approx(np.sqrt(2 / 3))


def test_a_score_is_what_resolve_would_say():
    reward = make_reward(
        {"terms": {"constant": {"value": 3.0}, "env": {"weight": 2.0}}, "scale": 2}
    )
    rows = transitions(3)
    assert reward.score(rows).tolist() == [10.0, 14.0, 18.0]
    assert reward.resolve(rows).rew.tolist() == [10.0, 14.0, 18.0]


def test_only_terms_of_the_environment_are_plain():
    assert make_reward({"type": "env", "scale": 3.0, "normalize": True}).plain
    assert not make_reward({"terms": {"env": {}, "constant": {"weight": 0.0}}}).plain


class Counter(RewardModel):
    """Is worth how many transitions came before it in all."""

    episodic = True
    count = 0

    def scan(self, data):
        said = np.zeros(data.rew.shape, np.float32)
        said[data.mask] = self.count + np.arange(data.mask.sum())
        self.count += int(data.mask.sum())
        return said

    def score(self, data):
        return data.scanned


def test_what_episodic_terms_said_is_found_by_rows_of_which_some_are_no_data():
    reward = Reward({"counter": Term(Counter({}), 1.0)})
    data = rollout([[1.0, 1.0], [1.0, 1.0]], mask=[[True, True], [True, False]])
    rows = np.array([[0, 1], [2, 3]])
    reward.collect_data(data, rows)
    resolved = reward.resolve(data, rows, None)
    assert resolved.rew[data.mask].tolist() == [0.0, 1.0, 2.0]
    assert reward.resolve(data[1:], rows[1:], None).rew[0, 0] == 2.0


def test_rows_that_are_overwritten_are_worth_what_was_said_last():
    reward = Reward({"counter": Term(Counter({}), 1.0)})
    rows = np.array([[0, 1]])
    for _ in range(2):
        data = rollout([[1.0, 1.0]])
        reward.collect_data(data, rows)
    assert reward.resolve(data, rows, None).rew.tolist() == [[2.0, 3.0]]
    restored = Reward({"counter": Term(Counter({}), 1.0)})
    restored.load_state_dict(copy.deepcopy(reward.state_dict()))
    assert restored.resolve(data, rows, None).rew.tolist() == [[2.0, 3.0]]
