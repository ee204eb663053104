import pytest
from pydantic import ValidationError

from guerdon.config.options import meanings_of
from guerdon.nn import ModelConfig


def test_the_defaults_are_two_layers_of_64_with_tanh():
    config = ModelConfig()
    assert (config.hidden, config.activation, config.encoder) == ([64, 64], "tanh", "auto")


@pytest.mark.parametrize(
    "wrong", [{"layers": [64]}, {"activation": "gelu"}, {"hidden": [0]}, {"lstm": 0}]
)
def test_what_it_does_not_know_is_refused(wrong):
    with pytest.raises(ValidationError):
        ModelConfig(**wrong)


def test_every_field_says_what_it_does():
    assert all(meanings_of(ModelConfig)[name] for name in ModelConfig.model_fields)
