import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from guerdon.compat.nervex.armor import Armor
from guerdon.compat.nervex.armor_plugins import Plugin
from guerdon.compat.nervex.model import FCDiscreteNet
from guerdon.nn import ModelConfig, QNetwork
from tests.nn.test_registry import FCDQN

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)


class Counter(nn.Module):
    """One weight, one buffer, and the mode it was called in."""

    def __init__(self, value=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value]))
        self.register_buffer("count", torch.tensor(int(value)))
        self.modes = []

    def forward(self, obs):
        self.modes.append(self.training)
        return {"logit": obs * self.weight}


def moved(armor, value):
    with torch.no_grad():
        armor.model.weight.fill_(value)
        armor.model.count.fill_(int(value))


def followed(armor):
    return armor.target_model.weight.item(), armor.target_model.count.item()


@pytest.mark.parametrize("given", [False, True])
def test_assign_copies_at_every_nth_update_exactly(given):
    armor = Armor(Counter())
    armor.add_model("target", update_type="assign", update_kwargs={"freq": 3})
    seen = []
    for value in range(1, 8):
        moved(armor, float(value))
        armor.target_update(*([armor.state_dict()["model"]] if given else []))
        seen.append(followed(armor))
    assert seen == [(0, 0), (0, 0), (3, 3), (3, 3), (3, 3), (6, 6), (6, 6)]


@pytest.mark.parametrize("given", [False, True])
def test_momentum_goes_a_share_of_the_way_and_copies_buffers(given):
    armor = Armor(Counter())
    armor.add_model("target", update_type="momentum", update_kwargs={"theta": 0.25})
    moved(armor, 8.0)
    seen = []
    for _ in range(2):
        armor.target_update(*([armor.state_dict()["model"]] if given else []))
        seen.append(followed(armor))
    assert seen == [(2.0, 8), (3.5, 8)]  # 0 + 8 / 4; 2 + 6 / 4


@pytest.mark.parametrize("kwargs", [{"freq": 100}, {"theta": 0.01}])
def test_a_direct_update_copies_at_once_and_does_not_count(kwargs):
    armor = Armor(Counter())
    kind = "assign" if "freq" in kwargs else "momentum"
    armor.add_model("target", update_type=kind, update_kwargs=kwargs)
    moved(armor, 5.0)
    armor.target_update(direct=True)
    assert followed(armor) == (5.0, 5)
    assert armor.get_extra_state() == 0


def test_the_target_follows_normalisers_too():
    model = QNetwork(VECTOR, TWO, ModelConfig(hidden=[4], normalize_obs=True))
    armor = Armor(model)
    armor.add_model("target", update_type="momentum", update_kwargs={"theta": 1.0})
    model.normalizer.update(torch.randn(20, 3) * 4 + 2)
    obs = torch.randn(5, 3)
    assert not torch.allclose(armor.target_forward(obs)["logit"], armor.forward(obs)["logit"])
    armor.target_update()
    torch.testing.assert_close(armor.target_forward(obs)["logit"], armor.forward(obs)["logit"])


def test_weights_of_another_model_are_refused():
    armor = Armor(Counter())
    armor.add_model("target", update_type="assign", update_kwargs={"freq": 1})
    with pytest.raises(ValueError, match="they differ in"):
        armor.target_update(nn.Linear(1, 1).state_dict())


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = QNetwork(VECTOR, TWO, ModelConfig(hidden=[4]))
        self.learner = Armor(self.model)
        self.learner.add_model("target", update_type="assign", update_kwargs={"freq": 2})
        self.collector = Armor(self.model)
        self.collector.add_plugin("main", "argmax_sample")


def test_a_policy_has_the_models_parameters_once_and_the_targets_untrained():
    policy = Holder()
    trained = [value for value in policy.parameters() if value.requires_grad]
    assert [id(value) for value in trained] == [id(value) for value in policy.model.parameters()]
    frozen = [value for value in policy.parameters() if not value.requires_grad]
    assert len(frozen) == len(trained)
    names = [name for name in policy.state_dict() if not name.endswith("_extra_state")]
    assert all(name.startswith(("model.", "learner.target_model.")) for name in names)
    assert len(names) == 2 * len(trained)


def test_a_policys_state_dict_brings_the_target_and_its_count_back():
    first, second = Holder(), Holder()
    with torch.no_grad():
        first.model.head.linear.bias.add_(1)
    first.learner.target_update()
    second.load_state_dict(first.state_dict())
    for policy in (first, second):
        policy.learner.target_update()  # the second, which is when it moves
    for name, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], value)
    obs = torch.randn(4, 3)
    assert torch.equal(second.learner.target_forward(obs)["logit"], second.model(obs)["logit"])


def test_the_tutorials_state_dict_goes_there_and_back():
    first, second = Armor(Counter(1.0)), Armor(Counter(2.0))
    for armor in (first, second):
        armor.add_model("target", update_type="assign", update_kwargs={"freq": 2})
    moved(first, 7.0)
    first.target_update()
    state = copy.deepcopy(first.state_dict())
    assert set(state) == {"model", "target_model", "target_updates"}
    second.load_state_dict(state)
    assert (second.model.weight.item(), followed(second)) == (7.0, (1.0, 1))
    second.target_update()
    assert followed(second) == (7.0, 7)


def test_without_a_target_there_is_only_the_model():
    armor = Armor(Counter(1.0))
    assert list(armor.state_dict()) == ["model"]
    armor.add_model("target", update_type="assign", update_kwargs={"freq": 1})
    moved(armor, 3.0)
    armor.load_state_dict({"model": Counter(4.0).state_dict()})
    assert followed(armor) == (4.0, 4)


@pytest.mark.parametrize("call", ["target_forward", "target_update", "target_mode"])
def test_asking_for_a_target_that_is_not_there_says_how_to_add_it(call):
    arguments = {"target_forward": [torch.ones(1)], "target_update": [], "target_mode": [True]}
    with pytest.raises(ValueError, match=r"add_model\('target'"):
        getattr(Armor(Counter()), call)(*arguments[call])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("other", {}, "no model 'other': add 'target' or 'teacher'"),
        ("target", {"update_type": "copy"}, "unknown update_type 'copy'"),
        ("target", {"update_kwargs": {"theta": 0.1}}, "needs update_kwargs={'freq': ...}"),
        ("target", {"update_type": "momentum"}, "needs update_kwargs={'theta': ...}"),
    ],
)
def test_a_wrong_target_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        Armor(Counter()).add_model(name, **options)


def test_a_teacher_stays_as_it_is():
    armor, teacher = Armor(nn.Linear(2, 1)), nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"no teacher: call add_model\('teacher'"):
        armor.teacher_forward(torch.ones(1, 2))
    armor.add_model("teacher", teacher, teacher_cfg={"weight": 0.5})
    armor.add_plugin("teacher", "grad", enable_grad=True)
    output = armor.teacher_forward(torch.ones(3, 2))
    assert torch.equal(output, teacher(torch.ones(3, 2)))
    assert not output.requires_grad
    assert not any(weight.requires_grad for weight in armor.parameters())
    marker = armor.plugins()[0]
    assert marker.teacher_cfg == {"weight": 0.5}
    armor.teacher_mode(train=False)
    assert not teacher.training
    armor.teacher_reset()
    armor.add_model("teacher")
    assert armor.teacher_model is not armor.model


def test_the_target_may_be_a_given_model():
    armor, target = Armor(nn.Linear(2, 1)), nn.Linear(2, 1)
    armor.add_model("target", target, update_kwargs={"freq": 1})
    assert not torch.equal(target.weight, armor.model.weight)
    armor.target_update()
    assert torch.equal(target.weight, armor.model.weight)


def test_unknown_plugins_and_sides_are_refused():
    with pytest.raises(ValueError, match="argmax_sample"):
        Armor(Counter()).add_plugin("main", "argmax_smaple")
    with pytest.raises(ValueError, match="no side 'left'"):
        Armor(Counter()).add_plugin("left", "grad")


def test_plugins_of_the_target_may_come_before_it():
    armor = Armor(Counter(2.0))
    armor.add_plugin("target", "argmax_sample")
    armor.add_model("target", update_type="assign", update_kwargs={"freq": 1})
    assert armor.target_forward(torch.tensor([[1.0, 3.0]]))["action"].tolist() == [1]


def test_later_plugins_are_further_out():
    class Note(Plugin):
        def __init__(self, letter):
            self.letter = letter

        def forward(self, call, data, **kwargs):
            output = call(data, **kwargs)
            output["notes"] = output.get("notes", "") + self.letter
            return output

    armor = Armor(Counter())
    for letter in "abc":
        armor.add_plugin("main", Note, letter=letter)
    assert armor.forward(torch.ones(1))["notes"] == "abc"


def test_each_armor_calls_a_shared_model_in_its_own_mode():
    model = Counter()
    learner, collector = Armor(model), Armor(model)
    learner.mode(train=True)
    collector.mode(train=False)
    for armor in (learner, collector, learner):
        armor.forward(torch.ones(1))
    assert model.modes == [True, False, True]


def test_the_target_has_a_mode_of_its_own():
    armor = Armor(Counter())
    armor.add_model("target", update_type="assign", update_kwargs={"freq": 1})
    armor.mode(train=True)
    armor.target_mode(train=False)
    assert (armor.model.training, armor.target_model.training) == (True, False)


def test_a_model_that_takes_only_a_mapping_may_be_given_a_tensor():
    model = FCDQN(3, 2)
    armor = Armor(model)
    obs = torch.randn(4, 3)
    for data in (obs, {"obs": obs}, obs):
        assert torch.equal(armor.forward(data)["logit"], model({"obs": obs})["logit"])


def test_a_models_own_error_is_not_hidden():
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        Armor(Counter()).forward(torch.ones(1), speed=3)


def test_the_tutorials_learning_step_runs():
    model = FCDiscreteNet(3, 2, hidden_dim_list=[8])
    armor = Armor(model)
    armor.add_model("target", update_type="assign", update_kwargs={"freq": 2})
    armor.add_plugin("main", "argmax_sample")
    armor.add_plugin("main", "grad", enable_grad=True)
    armor.add_plugin("target", "grad", enable_grad=False)
    armor.mode(train=True)
    armor.target_mode(train=True)
    armor.reset()
    armor.target_reset()
    obs = torch.randn(6, 3)
    q_value = armor.forward(obs)["logit"]
    target = armor.target_forward(obs)["logit"]
    action = armor.forward(obs)["action"]
    assert (q_value.requires_grad, target.requires_grad) == (True, False)
    assert torch.equal(action, q_value.argmax(-1))
    (q_value - target - 1).square().mean().backward()
    armor.target_update(armor.state_dict()["model"])


def test_a_copy_of_a_policy_is_whole():
    policy = Holder()
    twin = copy.deepcopy(policy)
    with torch.no_grad():
        twin.model.head.linear.bias.add_(torch.tensor([100.0, 0.0]))
    obs = torch.randn(4, 3)
    assert torch.equal(twin.collector.forward(obs)["logit"], twin.model(obs)["logit"])
    twin.learner.target_update(direct=True)
    assert torch.equal(twin.learner.target_forward(obs)["logit"], twin.model(obs)["logit"])
    assert torch.equal(policy.learner.target_forward(obs)["logit"], policy.model(obs)["logit"])


def test_the_target_follows_after_a_change_of_precision():
    policy = Holder()
    policy.learner.target_update(direct=True)
    policy.double()
    with torch.no_grad():
        policy.model.head.linear.bias.add_(1)
    policy.learner.target_update(direct=True)
    obs = torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(policy.learner.target_forward(obs)["logit"], policy.model(obs)["logit"])
