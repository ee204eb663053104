"""How far transitions are from the fitted data, and the floor of their rewards."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.reward import REWARDS, RewardModel, Setting, create_reward_model
from guerdon.reward.composition import Reward, Term
from guerdon.reward.novelty import NoveltyReward
from guerdon.reward.ood import SIZE, Reference, comparable, frame_vectors, image_cells
from tests.reward.seeing import episode, pictures, reader

BOX = spaces.Box(-100, 100, (1,))
STD = math.sqrt(28.75 / 4)  # of 0, 1, 3, 7, whose mean is 2.75


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def fitted(groups=(0, 1, 2, 3)):
    reference = Reference()
    reference.fit(torch.tensor([[0.0], [1.0], [3.0], [7.0]]), np.array(groups))
    return reference


def test_known_distances_are_means_to_the_three_nearest_rows_of_other_groups():
    expected = torch.tensor([3.0, 3.0, 11 / 3, 17 / 3]) / STD
    torch.testing.assert_close(fitted().distances, expected)


def test_rows_of_the_same_group_do_not_count():
    expected = torch.tensor([2.5, 4.0, 5.0, 6.5]) / STD
    torch.testing.assert_close(fitted((0, 0, 1, 1)).distances, expected)


def test_rows_of_a_single_group_are_groups_of_their_own():
    torch.testing.assert_close(fitted((5, 5, 5, 5)).distances, fitted().distances)


def test_a_score_is_the_share_of_fitted_rows_that_are_nearer():
    # Distances times the standard deviation: 1, then 13/3 (between 11/3 and 17/3), then far.
    scores = fitted().score(torch.tensor([[1.0], [-3.0], [20.0]]))
    assert scores.tolist() == [0.0, 0.75, 1.0]
    assert fitted().score(torch.zeros(2, 3, 1)).shape == (2, 3)


def test_a_shift_is_in_standard_deviations_of_the_fitted_rows():
    assert fitted().shift([2.75 - 1.5 * STD]) == pytest.approx(1.5)


def test_a_constant_number_keeps_its_scale():
    reference = Reference()
    reference.fit(torch.tensor([[4.0], [4.0], [4.0]]), np.arange(3))
    assert reference.shift([6.0]) == 2.0


def test_the_floor_and_the_median_are_those_of_fitted_rewards():
    reference = fitted()
    assert reference.floor is None
    assert reference.well_paid(torch.tensor([-5.0])).all()
    reference.rewards = torch.tensor([-2.0, -1.0, 3.0])
    assert reference.floor == -2.0
    assert reference.well_paid(torch.tensor([-1.5, -1.0])).tolist() == [False, True]


def test_at_most_so_many_rows_are_kept_and_the_seed_decides_which():
    rows = torch.randn(3 * SIZE, 2, generator=torch.Generator().manual_seed(0))
    kept = []
    for seed in (1, 1, 2):
        reference = Reference()
        reference.fit(rows, np.arange(len(rows)) // 10, seed)
        kept.append(reference.rows)
    assert len(kept[0]) == SIZE
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])


def test_a_state_is_everything():
    reference = fitted()
    reference.rewards, reference.disagreement = torch.tensor([1.0]), torch.tensor([0.5])
    other = Reference()
    other.load_training_state(reference.training_state())
    assert equal(other.training_state(), reference.training_state())


def test_new_rows_of_the_same_kind_are_rarely_beyond():
    generator = torch.Generator().manual_seed(0)
    rows, new = torch.randn(2, 1000, 3, generator=generator)
    reference = Reference()
    reference.fit(rows, np.arange(1000))
    assert (reference.score(new) >= 0.99).float().mean() < 0.03
    assert (reference.score(new + 6) >= 0.99).all()


def test_values_of_a_space_become_numbers():
    space = spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.Box(-1, 1, (2,)))
    values = Batch(a=torch.tensor([1, 3]), b=torch.tensor([[0.5, 1.0], [-1.0, 0.0]]))
    expected = [[1.0, 0.0, 0.0, 0.5, 1.0], [0.0, 0.0, 1.0, -1.0, 0.0]]
    assert comparable(values, space).tolist() == expected


def test_images_become_cells_whatever_the_place_of_their_channels():
    images = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    images[:, 1, :2, :2] = 255
    cells = image_cells(images)
    assert cells.shape == (1, 192)
    assert cells[0].nonzero().flatten().tolist() == [64]
    assert cells[0, 64] == 1.0
    assert torch.equal(image_cells(images.movedim(1, -1)), cells)
    assert torch.equal(comparable(images, spaces.Box(0, 255, (3, 16, 16), np.uint8)), cells)


class Slope(RewardModel):
    """A frozen reward that grows without bound, fitted to 0, 1, 3 and 7."""

    fields = ("obs",)

    def __init__(self, collects=()):
        super().__init__({}, Setting(BOX, BOX))
        self.collects = collects
        self.rows = Batch(obs=torch.tensor([[0.0], [1.0], [3.0], [7.0]]))
        self.set_reference(self.rows, np.arange(4))
        self.update_reference()

    def fitted_rows(self):
        return self.rows

    def score(self, batch):
        return batch.obs[..., 0] - 2.0


def rows_of(*values):
    return Batch(obs=torch.tensor(values)[:, None], rew=torch.zeros(len(values)))


@pytest.mark.parametrize(
    ("ood", "cotrain", "expected"),
    [
        ("warn", False, [-1.0, 48.0, -52.0]),
        ("off", False, [-1.0, 48.0, -52.0]),
        ("floor", False, [-1.0, -2.0, -52.0]),  # never more than before
        ("floor", True, [-1.0, 48.0, -52.0]),  # co-trained models only warn
    ],
)
def test_the_floor_is_the_lowest_reward_of_fitted_rows(ood, cotrain, expected):
    reward = Reward({"slope": Term(Slope(("obs",)), 1.0)}, ood=ood, cotrain=cotrain)
    batch = rows_of(1.0, 50.0, -50.0)
    assert reward.resolve(batch).rew.tolist() == expected
    assert reward.score(batch.to_numpy()).tolist() == expected


def test_the_comparison_changes_nothing():
    reward = Reward({"slope": Term(Slope(), 1.0)})
    before = copy.deepcopy(reward.models[0].reference.training_state())
    found = reward.familiarity(rows_of(1.0, 50.0), None, None)["slope"]
    assert found["score"].tolist() == [0.0, 1.0]
    assert found["well_paid"].tolist() == [True, True]  # the median is -1
    assert equal(before, reward.models[0].reference.training_state())
    assert (
        Reward({"slope": Term(Slope(), 1.0)}, ood="off").familiarity(rows_of(1.0), None, None) == {}
    )


def test_novelty_has_no_reference():
    for name in ("rnd", "icm", "ngu"):
        assert issubclass(REWARDS.get(name), NoveltyReward)
    model = create_reward_model({"type": "rnd", "hidden_size": [4]}, Setting(BOX, BOX))
    assert not len(model.reference)


def demonstrations(episodes=3, length=20):
    generator = np.random.default_rng(0)
    made = []
    for _ in range(episodes):
        obs = generator.normal(size=(length + 1, 1)).astype(np.float32)
        made.append(
            Batch(
                obs=obs[:-1],
                act=generator.normal(size=(length, 1)).astype(np.float32),
                rew=np.ones(length, np.float32),
                terminated=np.zeros(length, bool),
                truncated=np.arange(length) == length - 1,
                obs_next=obs[1:],
            )
        )
    return Demonstrations(made, BOX, BOX)


@pytest.mark.parametrize("kind", ["gail", "red", "pwil", "ensemble"])
@pytest.mark.filterwarnings("ignore:red: ")  # after so few steps
def test_a_frozen_model_has_the_reference_of_the_run_that_fitted_it(kind):
    small = {"type": "red" if kind == "ensemble" else kind, "expert_data_path": None}
    small |= {"subsample": 1} if kind == "pwil" else {"hidden_size": [8], "update_per_collect": 2}
    config = {"type": "ensemble", "of": small, "members": 2} if kind == "ensemble" else small
    setting = Setting(BOX, BOX, horizon=20)
    model = create_reward_model(config, setting)
    model.load_expert_data(demonstrations())
    reward = Reward({kind: Term(model, 1.0)})
    if kind == "gail":
        rows = demonstrations(1).episodes[0]
        flags = Batch(mask=np.ones((20, 1), bool), first=(np.arange(20) == 0)[:, None])
        model.collect_data(Batch({**rows.apply(lambda leaf: leaf[:, None]), **flags}))
    reward.train()
    other = create_reward_model(config, setting)
    other.load_training_state(model.portable_state())
    assert len(other.reference) == 60
    assert other.reference.floor == model.reference.floor is not None
    far = Batch(obs=torch.full((2, 1), 90.0), act=torch.zeros(2, 1), rew=torch.zeros(2))
    if kind != "ensemble":  # scored by its disagreement
        assert (other.ood(far) == 1).all()
    else:
        assert torch.equal(other.ood(far), model.ood(far))
        assert len(other.reference.disagreement) == 40  # of two fitted episodes


# --- a success classifier


def test_a_classifier_predicts_no_success_for_frames_unlike_the_fitted_ones():
    model = reader()
    known = pictures(range(150, 256))
    model.reference.fit(frame_vectors({"base_camera": known}), np.arange(len(known)))
    data = episode(10, 120, 200)
    data.obs_next.base_camera[1, 1:] = 255  # over-exposed
    data.obs_next.base_camera[1, 0, 0, 0] = 250  # and the classifier takes it for a success
    assert Reward({"lamp": Term(model, 1.0)}).score(data).tolist() == [0, 1, 0]
    floored = Reward({"lamp": Term(model, 1.0)}, ood="floor", cotrain=False)
    assert floored.score(data).tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match=r"'reward\.ood' is floor"):
        model.success({"base_camera": torch.zeros(1, 3, 16, 16, dtype=torch.uint8)})


def test_only_predicted_successes_are_compared():
    model = reader()
    known = pictures(range(150, 256))
    model.reference.fit(frame_vectors({"base_camera": known}), np.arange(len(known)))
    data = model.complete(episode(10, 200, 220)).to_device(torch.device("cpu"))
    scores = model.ood(data)
    assert scores.isnan().tolist() == [True, False, True]  # the last is after a success
    assert scores[1] < 0.99


def test_the_shift_of_first_rows_counts_if_it_is_smaller():
    reference = Reference()
    rows = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    reference.fit(rows, np.arange(4), first=np.array([True, True, False, False]))
    assert reference.shift([2.0]) == pytest.approx(4 / math.sqrt(26))  # of all: mean 6
    assert reference.shift([1.5]) == pytest.approx(0.5)  # of first rows: mean 1, deviation 1
