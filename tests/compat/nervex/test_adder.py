import math
from collections import deque

import pytest
import torch

from guerdon.compat.nervex.adder import Adder
from guerdon.compat.nervex.attr_dict import AttrDict


def trajectory(length, done=False):
    """Transitions that are numbered: row t has obs t, next_obs t + 1 and reward 10 ** t."""
    return [
        {
            "obs": torch.tensor([float(t)]),
            "next_obs": torch.tensor([t + 1.0]),
            "reward": torch.tensor(10.0**t),
            "done": torch.tensor(done and t == length - 1),
        }
        for t in range(length)
    ]


def numbers(rows, key="obs"):
    return [row[key].item() for row in rows]


@pytest.fixture
def adder():
    return Adder(use_cuda=False, unroll_len=1)


class TestGetTraj:
    def test_it_takes_the_oldest_transitions_out_of_the_cache(self, adder):
        cache = deque(trajectory(5))
        assert numbers(adder.get_traj(cache, 3)) == [0, 1, 2]
        assert numbers(cache) == [3, 4]

    def test_what_it_looks_ahead_at_begins_the_next_trajectory(self, adder):
        cache = deque(trajectory(10))
        assert numbers(adder.get_traj(cache, 4, return_num=3)) == [0, 1, 2, 3, 4, 5, 6]
        assert numbers(adder.get_traj(cache, 4, return_num=3)) == [4, 5, 6, 7, 8, 9]
        assert numbers(adder.get_traj(cache, 4, return_num=3)) == [8, 9]
        assert not cache

    def test_an_infinite_length_takes_everything(self, adder):
        cache = deque(trajectory(4))
        assert numbers(adder.get_traj(cache, math.inf, return_num=2)) == [0, 1, 2, 3]
        assert not cache
        assert numbers(adder.get_traj(deque(trajectory(4)), "inf")) == [0, 1, 2, 3]


class TestNstepReturns:
    def test_rewards_next_observation_and_end_are_those_of_n_steps(self, adder):
        rows = adder.get_nstep_return_data(trajectory(4, done=True), 3, traj_len=10)
        assert [row["reward"].tolist() for row in rows] == [
            [1, 10, 100],
            [10, 100, 1000],
            [100, 1000, 0],
            [1000, 0, 0],
        ]
        assert numbers(rows, "next_obs") == [3, 4, 4, 4]
        assert [bool(row["done"]) for row in rows] == [False, True, True, True]
        assert numbers(rows) == [0, 1, 2, 3]

    def test_a_return_that_breaks_off_without_a_termination_is_left_out(self, adder):
        rows = adder.get_nstep_return_data(trajectory(4), 3, traj_len=10)
        assert numbers(rows) == [0, 1]
        assert adder.get_nstep_return_data(trajectory(2), 3, traj_len=10) == []

    def test_no_more_transitions_than_the_trajectory_has_come_back(self, adder):
        rows = adder.get_nstep_return_data(trajectory(5), 3, traj_len=1)
        assert numbers(rows) == [0]
        assert rows[0]["reward"].tolist() == [1, 10, 100]

    def test_one_step_changes_nothing(self, adder):
        rows = trajectory(3)
        assert adder.get_nstep_return_data(rows, 1, traj_len=2) == rows[:2]

    def test_what_it_is_given_stays_as_it_is(self, adder):
        rows = [AttrDict(row) for row in trajectory(3)]
        made = adder.get_nstep_return_data(rows, 2, traj_len=9)
        assert [row.reward.item() for row in rows] == [1, 10, 100]
        assert made[0].reward.tolist() == [1, 10]  # of the same class

    def test_rewards_may_be_plain_numbers_or_of_length_one(self, adder):
        rows = [{"reward": 1.0, "done": False}, {"reward": torch.tensor([2.0]), "done": True}]
        made = adder.get_nstep_return_data(rows, 2, traj_len=9)
        assert [row["reward"].tolist() for row in made] == [[1, 2], [2, 0]]


class TestGAE:
    def rows(self, done):
        values, rewards = (0.5, 1.0, 2.0), (1.0, 0.0, 3.0)
        return [
            {"value": torch.tensor(v), "reward": r, "done": done and t == 2}
            for t, (v, r) in enumerate(zip(values, rewards, strict=True))
        ]

    def test_advantages_are_those_computed_by_hand(self, adder):
        rows = adder.get_gae(self.rows(done=False), last_value=4.0, gamma=0.5, gae_lambda=0.5)
        # errors: 3 + .5 * 4 - 2 = 3;  0 + .5 * 2 - 1 = 0;  1 + .5 * 1 - .5 = 1
        assert numbers(rows, "adv") == pytest.approx([1 + 0.25 * 0.75, 0.75, 3.0])

    def test_after_a_termination_there_is_no_value(self, adder):
        rows = adder.get_gae(self.rows(done=True), last_value=4.0, gamma=0.5, gae_lambda=0.0)
        assert numbers(rows, "adv") == pytest.approx([1.0, 0.0, 1.0])

    def test_no_transitions_have_no_advantages(self, adder):
        assert adder.get_gae([], last_value=0.0, gamma=0.9, gae_lambda=0.9) == []


class TestTrainSample:
    def unrolled(self, length):
        samples = Adder(False, 3).get_train_sample(trajectory(length))
        obs = [[value.item() for value in sample["obs"]] for sample in samples]
        return obs, [[bool(real) for real in sample["mask"]] for sample in samples]

    def test_single_transitions_are_samples_already(self, adder):
        rows = trajectory(3)
        assert adder.get_train_sample(rows) == rows

    def test_transitions_are_unrolled_into_equal_pieces(self):
        assert self.unrolled(6) == ([[0, 1, 2], [3, 4, 5]], [[True] * 3] * 2)
        assert self.unrolled(0) == ([], [])

    def test_a_short_last_piece_begins_earlier(self):
        assert self.unrolled(5) == ([[0, 1, 2], [2, 3, 4]], [[True] * 3] * 2)

    def test_a_trajectory_that_is_too_short_is_filled_up(self):
        assert self.unrolled(2) == ([[0, 1, 0]], [[True, True, False]])

    def test_nested_values_are_filled_up(self):
        rows = [{"obs": {"image": torch.ones(2)}, "action": 3}]
        (sample,) = Adder(False, 2).get_train_sample(rows)
        assert sample["obs"][1]["image"].tolist() == [0, 0]
        assert sample["action"][1] == 0


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="unroll_len is 0"):
        Adder(False, 0)


def test_an_infinite_length_of_configs_is_understood_everywhere(adder):
    rows = adder.get_traj(deque(trajectory(4, done=True)), "inf", return_num=2)
    assert numbers(adder.get_nstep_return_data(rows, 1, "inf")) == [0, 1, 2, 3]
    assert len(adder.get_nstep_return_data(rows, 2, "inf")) == 4


class TestGaeWithoutALastValue:
    def rows(self):
        return [{"reward": torch.tensor(1.0 + t), "value": torch.tensor(0.5 * t)} for t in range(3)]

    def test_a_terminated_trajectory_ends_with_zero(self, adder):
        found = adder.get_gae_with_default_last_value(self.rows(), True, 0.9, 0.8)
        expected = adder.get_gae(self.rows(), torch.zeros(1), 0.9, 0.8)
        assert numbers(found, "adv") == pytest.approx(numbers(expected, "adv"))

    def test_otherwise_its_last_transition_gives_the_value_only(self, adder):
        found = adder.get_gae_with_default_last_value(self.rows(), False, 0.9, 0.8)
        expected = adder.get_gae(self.rows()[:2], 1.0, 0.9, 0.8)
        assert numbers(found, "adv") == pytest.approx(numbers(expected, "adv"))
        assert adder.get_gae_with_default_last_value([], False, 0.9, 0.8) == []


class TestHindsight:
    def episode(self):
        """States are bits; row t reaches state t + 1, and wants state 9."""
        return [
            {
                "obs": torch.tensor([float(t), 9.0]),
                "next_obs": torch.tensor([t + 1.0, 9.0]),
                "reward": torch.zeros(1),
                "action": t,
            }
            for t in range(4)
        ]

    @pytest.mark.parametrize(
        ("strategy", "goals"),
        [
            ("final", lambda _: {4}),
            ("future", lambda t: set(range(t + 1, 5))),
            ("episode", lambda _: {1, 2, 3, 4}),
        ],
    )
    def test_goals_are_those_of_the_strategy(self, strategy, goals):
        torch.manual_seed(0)
        adder = Adder(False, 1, her_strategy=strategy, her_replay_k=60)
        found = adder.get_her(self.episode())
        assert len(found) == 240
        for t in range(4):
            rows = [row for row in found if row["action"] == t]
            assert {int(row["obs"][1]) for row in rows} == goals(t)
            for row in rows:
                assert row["next_obs"][0] == t + 1
                assert row["next_obs"][1] == row["obs"][1]
                assert row["reward"].tolist() == [float(row["obs"][1] == t + 1)]

    def test_observations_may_have_any_form(self, adder):
        rows = [
            {"obs": {"s": t, "g": 9}, "next_obs": {"s": t + 1, "g": 9}, "reward": 0.0}
            for t in range(2)
        ]
        found = Adder(False, 1, her_strategy="final").get_her(
            rows,
            merge_func=lambda s, g: {"s": s, "g": g},
            split_func=lambda obs: (obs["s"], obs["g"], obs["s"]),
            goal_reward_func=lambda achieved, desired: -abs(achieved - desired),
        )
        assert found == [
            {"obs": {"s": 0, "g": 2}, "next_obs": {"s": 1, "g": 2}, "reward": -1},
            {"obs": {"s": 1, "g": 2}, "next_obs": {"s": 2, "g": 2}, "reward": 0},
        ]
        assert rows[0]["obs"] == {"s": 0, "g": 9}
        assert adder.get_her([]) == []

    def test_a_wrong_strategy_is_refused(self):
        with pytest.raises(ValueError, match="unknown her_strategy 'past'"):
            Adder(False, 1, her_strategy="past")
