import copy

import numpy as np
import pytest
import torch

from guerdon.reward import ConstantReward, EnvReward, FunctionReward, create_reward_model
from guerdon.reward.controls import load_function
from tests.reward.cases import first_number, transitions

HERE = "tests.reward.cases"


def test_env_is_the_environments_reward():
    data = transitions()
    assert EnvReward({}).estimate(data).rew.tolist() == [1.0, 2.0, 3.0, 4.0]
    resolved = data.replace(rew_env=data.rew, rew=np.zeros(4))
    assert EnvReward({}).estimate(resolved).rew.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("shape", [(4,), (2, 3), (5, 1)], ids=str)
def test_constant_is_the_same_for_rows_of_any_shape(shape):
    data = transitions().replace(rew=np.zeros(shape))
    rew = ConstantReward({"value": -0.5}).estimate(data).rew
    assert rew.shape == shape
    assert (rew == -0.5).all()


def test_constant_is_one_by_default():
    assert ConstantReward({}).estimate(transitions()).rew.tolist() == [1.0] * 4


@pytest.mark.parametrize("target", [first_number, f"{HERE}:first_number"], ids=["itself", "named"])
def test_function_is_the_users_function(target):
    model = create_reward_model({"type": "function", "target": target})
    assert model.estimate(transitions()).rew.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_function_takes_any_callable():
    class Rule:
        def __call__(self, data):
            return data.rew * 2

    for rule in (Rule(), lambda data: data.rew * 2):
        model = FunctionReward({"target": rule})
        assert model.estimate(transitions()).rew.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_function_may_return_a_tensor_a_list_or_whole_numbers():
    for answer in (torch.arange(4.0), [0, 1, 2, 3], np.arange(4)):
        rew = FunctionReward({"target": lambda _, a=answer: a}).estimate(transitions()).rew
        assert rew.tolist() == [0.0, 1.0, 2.0, 3.0]
        assert rew.dtype == np.float32


def test_function_takes_rollouts_too():
    data = transitions().replace(obs=np.arange(12.0).reshape(2, 3, 2), rew=np.zeros((2, 3)))
    rew = FunctionReward({"target": first_number}).estimate(data).rew
    assert rew.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]


def test_function_reads_the_fields_of_its_options():
    assert FunctionReward({"target": first_number}).fields == (
        "obs",
        "act",
        "obs_next",
        "terminated",
    )
    model = FunctionReward({"target": first_number, "fields": ["obs"]})
    assert model.fields == ("obs",)
    assert FunctionReward.fields == ()


@pytest.mark.parametrize(
    ("answer", "shape"), [(1.0, r"\(\)"), (np.zeros((4, 1)), r"\(4, 1\)"), ([1.0], r"\(1,\)")]
)
def test_a_result_that_is_not_one_number_each_is_refused(answer, shape):
    model = FunctionReward({"target": lambda _: answer})
    with pytest.raises(
        ValueError, match=rf"returned shape {shape} for transitions of shape \(4,\)"
    ):
        model.estimate(transitions())


@pytest.mark.parametrize("model", ["env", "constant", "function"])
def test_the_input_stays_as_it_is(model):
    options = {"target": first_number} if model == "function" else {}
    data = transitions()
    before = copy.deepcopy(data)
    create_reward_model({"type": model, **options}).estimate(data)
    assert data == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_colon", "'package.module:Name'"),
        ("no_such_module:rule", "names the module 'no_such_module'"),
        (f"{HERE}:no_such_rule", "no_such_rule"),
    ],
)
def test_a_function_that_is_not_there_is_an_error(name, message):
    with pytest.raises(ValueError, match=message):
        load_function(name, "reward.target")
    with pytest.raises(ValueError, match=message):
        FunctionReward({"target": name})


def test_a_name_of_something_else_than_a_function_is_an_error():
    with pytest.raises(ValueError, match="NOT_A_FUNCTION"):
        load_function(f"{HERE}:NOT_A_FUNCTION", "reward.target")


def test_function_needs_a_target():
    with pytest.raises(ValueError, match="target"):
        create_reward_model({"type": "function"})


@pytest.mark.parametrize("target", ["operator:add", "os:getcwd", "json:JSONDecodeError"])
def test_a_function_that_is_not_called_with_one_thing_is_named(target):
    with pytest.raises(
        ValueError, match=rf"{target} is called with one argument, a Batch .* takes \("
    ):
        FunctionReward({"target": target})


@pytest.mark.parametrize(("target", "name"), [("math:sqrt", "math:sqrt"), (float, "float")])
def test_a_function_that_cannot_take_a_batch_is_named(target, name):
    model = FunctionReward({"target": target})
    with pytest.raises(ValueError, match=f"{name} failed for a Batch of transitions: .*Batch"):
        model.estimate(transitions())


def test_a_function_without_a_signature_is_taken():
    assert FunctionReward({"target": max}).fields  # what it takes is unknown
