"""Nearest names."""

from guerdon.config.errors import either, suggestion


def test_a_slip_is_answered_with_the_nearest_name():
    assert suggestion("Sede", ["run", "seed", "eval"]) == "did you mean 'seed'?"


def test_a_part_of_a_name_is_near():
    known = ["cartpole_dqn", "cartpole_ppo", "pendulum_sac"]
    assert suggestion("cartpole", known) == "did you mean 'cartpole_dqn' or 'cartpole_ppo'?"


def test_where_nothing_is_near_all_names_are_shown():
    assert suggestion("zzzzzz", ["ppo", "dqn"]) == "choose from dqn, ppo"
    assert suggestion("zzzzzz", []) == "there is none"


def test_names_are_joined_as_a_sentence_has_it():
    assert either(["a"]) == "'a'"
    assert either(["a", "b", "c"]) == "'a', 'b' or 'c'"
