"""The sections: defaults, types, and one sentence for each mistake."""

import string

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from guerdon.config import ConfigError
from guerdon.config.options import meanings_of
from guerdon.config.schema import EnvConfig, GuerdonConfig
from guerdon.config.validation import keys_of, validated
from guerdon.reward import REWARDS
from tests.config import fakes

pytestmark = pytest.mark.usefixtures("policies")


def values(**sections) -> dict:
    base = {
        "env": {"id": "CartPole-v1"},
        "policy": {"type": "ppo"},
        "collect": {"n_step": 256},
    }
    return {key: {**base.get(key, {}), **value} for key, value in {**base, **sections}.items()}


def refused(**sections) -> str:
    with pytest.raises(ConfigError) as error:
        validated(GuerdonConfig, values(**sections))
    return str(error.value)


def test_a_small_configuration_is_completed():
    config = validated(GuerdonConfig, values())
    assert config.policy == {
        "type": "ppo",
        "gamma": 0.99,
        "learning_rate": 3e-4,
        "model": {"hidden": [64, 64], "activation": "tanh", "type": None},
    }
    assert config.reward.terms == {"env": {"type": "env", "weight": 1.0}}
    assert (config.env.n_envs, config.eval.episodes, config.eval.n_envs) == (8, 20, 10)
    assert (config.run.device, config.seed) == ("cpu", 0)


def test_a_part_of_an_inner_model_keeps_the_rest_of_its_default():
    sections = {"policy": {"type": "dqn", "model": {"hidden": [8]}}, "collect": {"buffer_size": 99}}
    config = validated(GuerdonConfig, values(**sections))
    assert config.policy["model"] == {"hidden": [8], "activation": "relu", "type": None}


def test_a_configuration_is_frozen():
    config = validated(GuerdonConfig, values())
    with pytest.raises(ValidationError):
        config.seed = 3
    with pytest.raises(ValidationError):
        config.env.n_envs = 3


def test_every_field_says_what_it_does():
    for section in keys_of(GuerdonConfig):
        model = GuerdonConfig
        for part in filter(None, section.split(".")):
            model = model.model_fields[part].annotation
        for name in model.model_fields:
            assert meanings_of(model)[name], f"{section}.{name}"


# --- mistakes

KNOWN = [
    (section, key)
    for section, keys in {
        **keys_of(GuerdonConfig),
        "policy": list(fakes.PolicyConfig.model_fields),
    }.items()
    for key in keys
    if section
] + [("policy.model", "hidden"), ("reward.terms.constant", "value"), ("env.eval", "frame_stack")]


def typos(word: str):
    letters = st.sampled_from(string.ascii_lowercase + "_")
    places = st.integers(0, len(word) - 1)
    return st.one_of(
        places.map(lambda i: word[:i] + word[i + 1 :]),
        st.builds(lambda i, letter: word[:i] + letter + word[i + 1 :], places, letters),
        st.builds(lambda i, letter: word[:i] + letter + word[i:], places, letters),
        places.map(lambda i: word[:i] + word[i : i + 2][::-1] + word[i + 2 :]),
    )


@settings(max_examples=300)
@given(st.data())
def test_any_slip_of_one_character_is_answered_with_the_key(data):
    section, key = data.draw(st.sampled_from(KNOWN))
    slip = data.draw(typos(key))
    assume(slip and (section, slip) not in KNOWN)
    nested: dict = {slip: 1}
    for name in reversed(section.split(".")[1:]):
        nested = {name: nested}
    sentence = refused(**{section.split(".")[0]: nested})
    assert sentence.startswith(f"unknown key '{section}.{slip}': did you mean ")
    assert repr(key) in sentence


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"policy": {"learning_rat": 1}},
            "unknown key 'policy.learning_rat': did you mean 'learning_rate'?",
        ),
        (
            {"policy": {"model": {"hiden": []}}},
            "unknown key 'policy.model.hiden': did you mean 'hidden'?",
        ),
        (
            {"env": {"batch_size": 1}},
            "unknown key 'env.batch_size': did you mean 'learn.batch_size'?",
        ),
        (
            {"policy": {"gamma": "much"}},
            (
                "'policy.gamma' is 'much': "
                "it should be a valid number, unable to parse string as a number"
            ),
        ),
        ({"policy": {"gamma": 2}}, "'policy.gamma' is 2: it should be less than or equal to 1"),
        (
            {"policy": {"model": {"hidden": [1, "x"]}}},
            (
                "'policy.model.hidden.1' is 'x': "
                "it should be a valid integer, unable to parse string as an integer"
            ),
        ),
        ({"policy": {"type": "pppo"}}, "'policy.type': unknown policy 'pppo': did you mean 'ppo'?"),
        ({"policy": {"type": None}}, "'policy.type' is missing: choose from dqn, ppo"),
        (
            {"env": {"backend": "thread"}},
            (
                "'env.backend' is 'thread': it should be 'auto', 'native', 'base', 'subprocess', "
                "'async_subprocess' or 'envpool'"
            ),
        ),
        (
            {"env": {"n_envs": 1, "settings": [{}, {}]}},
            (
                "'env.settings' has 2 entries for 1 environments: "
                "give at most one for each ('env.n_envs')"
            ),
        ),
        (
            {"env": {"eval": {"frame_stack": 0}}},
            "'env.eval.frame_stack' is 0: it should be greater than or equal to 1",
        ),
        (
            {"collect": {"n_episode": 2}},
            "give 'collect.n_step' or 'collect.n_episode', not both",
        ),
        (
            {"collect": {"n_step": None}},
            "give 'collect.n_step' or 'collect.n_episode', not neither",
        ),
        (
            {"learn": {"batch_size": 257}},
            (
                "'learn.batch_size' is 257, more than 'collect.n_step' (256): "
                "an on-policy batch cannot be larger than the rollout"
            ),
        ),
        (
            {"policy": {"type": "dqn"}},
            "'collect.buffer_size' is missing: dqn learns from a buffer",
        ),
        (
            {
                "policy": {"type": "dqn"},
                "collect": {"buffer_size": 100, "warmup_steps": 1000},
            },
            "'collect.buffer_size' is 100: it has to hold a batch (64) and the warmup (1000 steps)",
        ),
        (
            {
                "policy": {"type": "dqn"},
                "collect": {"buffer_size": 100, "warmup_steps": 90},
                "run": {"max_steps": 90},
            },
            (
                "'collect.warmup_steps' is 90 and 'run.max_steps' 90: "
                "dqn learns after the warmup, so make it shorter"
            ),
        ),
        (
            {"env": {"eval": {"n_envs": 2}}},
            "'env.eval' has 'n_envs': set 'eval.n_envs' instead",
        ),
        (
            {"reward": {"terms": {"env": {"weight": 0}}}},
            (
                "all terms of 'reward' have weight 0, so there is nothing to learn: set another "
                "weight, or list terms in 'policy.intrinsic.terms' of ppo"
            ),
        ),
        (
            {"eval": {"episodes": 5, "n_envs": 6}},
            (
                "'eval.n_envs' is 6, more than 'eval.episodes' (5): "
                "give at most as many environments as episodes"
            ),
        ),
        (
            {"reward": {"terms": {}}},
            "'reward.terms' is empty: give at least one, for example {env: {}}",
        ),
        (
            {"reward": {"type": "env", "terms": {"env": {}}}},
            "'reward' has 'type' and 'terms': write one term flat, or several under 'terms'",
        ),
        ({"reward": {"clip": [1, -1]}}, "'reward.terms' is missing"),
        (
            {"reward": {"type": "env", "clip": [1, -1]}},
            "'reward.clip' is [1.0, -1.0]: the lowest has to come first",
        ),
        (
            {"reward": {"type": "constant", "valu": 2}},
            "unknown key 'reward.valu': did you mean 'value'?",
        ),
        (
            {"reward": {"terms": {"functoin": {"weight": 2}}}},
            "'reward.terms.functoin.type': unknown reward 'functoin': did you mean 'function'?",
        ),
        (
            {"reward": {"terms": {"env": {"weight": "x"}}}},
            (
                "'reward.terms.env.weight' is 'x': "
                "it should be a valid number, unable to parse string as a number"
            ),
        ),
        (
            {"run": {"device": "gpu"}},
            "'run.device' is 'gpu': it should match pattern '^(cpu|auto|mps|cuda(:\\d+)?)$'",
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_mistake_is_answered_in_one_sentence(sections, sentence):
    assert refused(**sections) == sentence


def test_a_section_that_is_no_mapping_is_named():
    with pytest.raises(ConfigError, match=r"^'run' is 3: it should be a mapping$"):
        validated(GuerdonConfig, {**values(), "run": 3})
    with pytest.raises(ConfigError, match=r"^'env' is missing$"):
        validated(GuerdonConfig, {"policy": {"type": "ppo"}, "collect": {"n_step": 256}})


# --- rewards and environments


def test_one_reward_can_be_written_flat():
    config = validated(GuerdonConfig, values(reward={"type": "constant", "value": 2, "scale": 3}))
    usual = REWARDS.get("constant").Config().model_dump()
    own = {"type": "constant", "weight": 1.0, "value": 2.0}
    assert config.reward.terms == {"constant": usual | own}
    assert config.reward.scale == 3


def test_terms_have_types_weights_and_options_of_their_own():
    terms = {"env": {"weight": 0}, "alive": {"type": "constant", "weight": 2, "value": 0.5}}
    config = validated(GuerdonConfig, values(reward={"terms": terms, "clip": [-1, 1]}))
    usual = REWARDS.get("constant").Config().model_dump()
    assert config.reward.terms == {
        "env": {"type": "env", "weight": 0.0},
        "alive": usual | {"type": "constant", "weight": 2.0, "value": 0.5},
    }
    assert config.reward.clip == (-1.0, 1.0)


def test_evaluation_environments_differ_where_they_shall():
    env = EnvConfig(id="CartPole-v1", settings=[{"a": 1}, {"a": 2}], eval={"frame_stack": 2})
    evaluated = env.for_evaluation(1)
    assert (evaluated.n_envs, evaluated.frame_stack, evaluated.settings) == (1, 2, [{"a": 1}])
    assert evaluated.eval == {}
    other = EnvConfig(id="CartPole-v1", n_envs=1, eval={"settings": [{"a": 1}, {"a": 2}, {"a": 3}]})
    assert other.for_evaluation(2).settings == [{"a": 1}, {"a": 2}]
    assert other.for_evaluation(5).settings == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_games_of_atari_are_preprocessed_unless_somebody_says_otherwise():
    def preprocessed(**given):
        return EnvConfig(**given).atari

    assert preprocessed(id="ALE/Breakout-v5")
    assert not preprocessed(id="ALE/Breakout-v5", atari=False)
    assert not preprocessed(id="ALE/Breakout-v5", kwargs={"obs_type": "ram"})
    assert not preprocessed(id="CartPole-v1")
