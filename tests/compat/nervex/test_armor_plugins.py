import math

import pytest
import torch
from torch import nn

from guerdon.compat.nervex.armor import Armor
from guerdon.compat.nervex.armor_plugins import PLUGINS, Plugin, register_plugin
from guerdon.compat.nervex.model import FCRDiscreteNet


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Fixed(nn.Module):
    """Gives what it is given, times one."""

    def __init__(self, key="logit"):
        super().__init__()
        self.key = key
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, obs):
        return {self.key: obs * self.scale}


class Adder(nn.Module):
    """Its state is the sum of what each environment showed it."""

    def forward(self, inputs):
        before = inputs["prev_state"] or [None] * len(inputs["obs"])
        sums = [torch.zeros(1) if state is None else state["sum"] for state in before]
        after = torch.stack(sums) + inputs["obs"]
        return {"logit": after, "next_state": {"sum": after}}


def with_plugin(model, name, **options):
    armor = Armor(model)
    armor.add_plugin("main", name, **options)
    return armor


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_the_gradient_switch_holds_for_the_call_only(outside, inside):
    armor = with_plugin(Fixed(), "grad", enable_grad=inside)
    with torch.set_grad_enabled(outside):
        assert armor.forward(torch.ones(2))["logit"].requires_grad is inside
        assert torch.is_grad_enabled() is outside


def test_argmax_takes_the_largest_logit():
    output = with_plugin(Fixed(), "argmax_sample").forward(torch.tensor([[1.0, 5.0, 2.0]]))
    assert output["action"].tolist() == [1]


LOGIT = torch.tensor([0.0, 9.0, 1.0, 2.0]).expand(20_000, 4)


def test_eps_greedy_takes_random_actions_with_their_chance():
    armor = with_plugin(Fixed(), "eps_greedy_sample")
    action = armor.forward(LOGIT, eps=0.4)["action"]
    share = torch.bincount(action, minlength=4) / len(action)
    expected = torch.tensor([0.1, 0.7, 0.1, 0.1])  # 0.4 over four actions, and 0.6 for the best
    torch.testing.assert_close(share, expected, atol=0.012, rtol=0)


@pytest.mark.parametrize(("eps", "best"), [(0.0, 1.0), (1.0, 0.25)])
def test_eps_greedy_at_its_ends(eps, best):
    action = with_plugin(Fixed(), "eps_greedy_sample").forward(LOGIT, eps=eps)["action"]
    assert abs((action == 1).float().mean().item() - best) < (0.012 if eps else 1e-9)


def test_multinomial_draws_from_the_softmax():
    logit = torch.tensor([0.1, 0.2, 0.7]).log().expand(2, 10_000, 3)
    action = with_plugin(Fixed(), "multinomial_sample").forward(logit)["action"]
    assert action.shape == (2, 10_000)
    share = torch.bincount(action.flatten(), minlength=3) / action.numel()
    torch.testing.assert_close(share, torch.tensor([0.1, 0.2, 0.7]), atol=0.012, rtol=0)


@pytest.mark.parametrize("name", ["eps_greedy_sample", "multinomial_sample"])
def test_sampling_depends_on_the_generator_alone(name):
    def draw(seed):
        armor = with_plugin(Fixed(), name)
        (plugin,) = armor.plugins()
        plugin.generator = torch.Generator().manual_seed(seed)
        kwargs = {"eps": 0.5} if "eps" in name else {}
        return armor.forward(LOGIT[:100] / 9, **kwargs)["action"]

    before = torch.get_rng_state()
    assert torch.equal(draw(5), draw(5))
    assert not torch.equal(draw(5), draw(6))
    assert torch.equal(torch.get_rng_state(), before)


def test_gaussian_noise_has_its_mean_and_spread():
    options = {"noise_kwargs": {"sigma": 0.3, "mu": 0.2}, "action_range": None}
    armor = with_plugin(Fixed("action"), "action_noise", **options)
    noise = armor.forward(torch.full((20_000, 1), 5.0))["action"] - 5
    assert abs(noise.mean().item() - 0.2) < 0.01
    assert abs(noise.std().item() - 0.3) < 0.01


def test_noise_and_actions_are_clipped():
    options = {"noise_kwargs": {"sigma": 9.0}}
    bounds = {"noise_range": {"min": -0.5, "max": 0.25}, "action_range": None}
    armor = with_plugin(Fixed("action"), "action_noise", **options, **bounds)
    noise = armor.forward(torch.zeros(100, 1))["action"]
    assert (noise.min(), noise.max()) == (-0.5, 0.25)
    action = with_plugin(Fixed("action"), "action_noise", **options).forward(torch.zeros(100, 1))
    assert (action["action"].min(), action["action"].max()) == (-1, 1)


def test_ornstein_uhlenbeck_noise_remembers_until_it_is_reset():
    options = {"sigma": 0.0, "mu": 1.0, "theta": 0.5, "dt": 1.0}
    armor = with_plugin(
        Fixed("action"), "action_noise", noise_type="ou", noise_kwargs=options, action_range=None
    )
    zero = torch.zeros(2, 1)
    seen = [armor.forward(zero)["action"].flatten().tolist() for _ in range(2)]
    armor.reset(data_id=[1])
    seen.append(armor.forward(zero)["action"].flatten().tolist())
    armor.reset()
    seen.append(armor.forward(zero)["action"].flatten().tolist())
    assert seen == [[0.5, 0.5], [0.75, 0.75], [0.875, 0.5], [0.5, 0.5]]


def test_the_spread_of_ornstein_uhlenbeck_noise_grows_with_the_root_of_time():
    options = {"sigma": 0.5, "theta": 0.0, "dt": 0.04}
    armor = with_plugin(
        Fixed("action"), "action_noise", noise_type="ou", noise_kwargs=options, action_range=None
    )
    zero = torch.zeros(20_000, 1)
    for step in range(1, 4):
        spread = armor.forward(zero)["action"].std().item()
        assert abs(spread - 0.5 * math.sqrt(0.04 * step)) < 0.003


def test_an_unknown_noise_is_refused():
    with pytest.raises(KeyError, match="use one of 'gauss', 'ou'"):
        with_plugin(Fixed(), "action_noise", noise_type="pink")


def see(armor, values, ids=None):
    output = armor.forward(torch.tensor(values)[:, None], data_id=ids)
    return output["logit"].flatten().tolist()


def test_every_environment_has_a_state_of_its_own():
    armor = with_plugin(Adder(), "hidden_state")
    assert see(armor, [1.0, 2.0, 3.0], [0, 1, 2]) == [1, 2, 3]
    assert see(armor, [10.0, 20.0], [2, 0]) == [13, 21]
    assert see(armor, [100.0, 100.0], [1, 5]) == [102, 100]  # 5 is new
    assert see(armor, [0.0] * 4, [0, 1, 2, 5]) == [21, 102, 13, 100]


def test_some_environments_are_reset_and_others_are_not():
    armor = with_plugin(Adder(), "hidden_state")
    see(armor, [1.0, 2.0, 3.0], [0, 1, 2])
    armor.reset(data_id=[1, 7])
    assert see(armor, [0.0, 0.0, 0.0], [0, 1, 2]) == [1, 0, 3]
    armor.reset()
    assert see(armor, [0.0, 0.0, 0.0], [0, 1, 2]) == [0, 0, 0]


def test_rows_are_environments_by_default():
    armor = with_plugin(Adder(), "hidden_state")
    assert see(armor, [1.0, 2.0]) == [1, 2]
    assert see(armor, [1.0, 2.0]) == [2, 4]


def test_the_state_before_is_given_back_for_learning():
    model = FCRDiscreteNet(3, 2, [4], lstm_dim=5)
    armor = with_plugin(model, "hidden_state", save_prev_state=True)
    obs = torch.randn(2, 3)
    first = armor.forward(obs)
    second = armor.forward({"obs": obs})
    assert not first["prev_state"].any()
    assert torch.equal(second["prev_state"], model(obs)["next_state"])
    again = armor.model({"obs": obs, "prev_state": second["prev_state"]})
    assert torch.equal(again["logit"], second["logit"])


def test_states_kept_under_inference_mode_are_usable_outside():
    model = FCRDiscreteNet(3, 2, [4], lstm_dim=5)
    armor = with_plugin(model, "hidden_state", save_prev_state=True)
    with torch.inference_mode():
        armor.forward(torch.randn(2, 3), data_id=[0, 1])
    armor.reset(data_id=[0])
    armor.add_plugin("main", "grad", enable_grad=False)
    output = armor.forward(torch.randn(2, 3), data_id=[0, 1])
    assert not output["prev_state"][0].any()
    assert output["prev_state"][1].any()


class Pairs(nn.Module):
    """A model in nerveX's style: its states are a list of pairs, None at first."""

    def forward(self, inputs):
        assert isinstance(inputs["prev_state"], list)
        before = [state or (torch.zeros(1), torch.zeros(1)) for state in inputs["prev_state"]]
        after = [
            (total + obs, number + 1)
            for (total, number), obs in zip(before, inputs["obs"], strict=True)
        ]
        return {"logit": torch.stack([total for total, _ in after]), "next_state": after}


def test_states_may_be_any_objects():
    armor = with_plugin(Pairs(), "hidden_state", state_num=3, save_prev_state=True)
    assert see(armor, [1.0, 2.0, 3.0]) == [1, 2, 3]
    assert see(armor, [10.0, 20.0], [2, 0]) == [13, 21]
    output = armor.forward(torch.zeros(3, 1))
    assert [pair[1].item() for pair in output["prev_state"]] == [2, 1, 2]
    assert "next_state" not in output


def test_a_model_has_to_return_a_state_for_each_row():
    class Forgetful(nn.Module):
        def forward(self, inputs):
            return {"logit": inputs["obs"], "next_state": [None]}

    armor = with_plugin(Forgetful(), "hidden_state", state_num=3)
    with pytest.raises(ValueError, match="the model returned 1 states for 3 rows"):
        see(armor, [1.0, 2.0, 3.0])


def test_states_can_be_set_for_learning():
    armor = with_plugin(Adder(), "hidden_state", state_num=2)
    armor.reset(data_id=None, state=[{"sum": torch.ones(1)}, None])
    armor.reset(data_id=[1], state=[{"sum": torch.full((1,), 5.0)}])
    output = armor.forward(torch.zeros(2, 1))
    assert output["logit"].flatten().tolist() == [1, 5]
    assert "prev_state" not in output


def test_initial_states_of_ones_own():
    first = with_plugin(
        Adder(), "hidden_state", state_num=2, init_fn=lambda: {"sum": torch.full((1,), 7.0)}
    )
    assert see(first, [0.0, 1.0]) == [7, 8]
    first.reset(data_id=[1])
    assert see(first, [0.0, 0.0]) == [7, 7]


def test_a_segment_continues_from_the_states():
    model = FCRDiscreteNet(3, 2, [4], lstm_dim=5)
    armor = with_plugin(model, "hidden_state", state_num=2)
    obs = torch.randn(6, 2, 3)
    inputs = {"obs": obs[:4], "enable_fast_timestep": True}
    parts = [armor.forward(inputs)["logit"], armor.forward({"obs": obs[4:]})["logit"]]
    torch.testing.assert_close(torch.cat(parts), model(obs)["logit"])


def test_plugins_of_users_have_names_too():
    try:

        @register_plugin("double")
        class Double(Plugin):
            def forward(self, call, data, **kwargs):
                return call(data * 2, **kwargs)

        assert register_plugin("twice", Double) is Double
        for name in ("double", "twice"):
            output = with_plugin(Fixed(), name).forward(torch.tensor([3.0]))
            assert output["logit"].tolist() == [6.0]
    finally:
        for name in ("double", "twice"):
            PLUGINS._classes.pop(name, None)
