import pytest
import torch
from torch import nn

from guerdon.nn.optimizer import Optimizer
from tests.rounding import assert_close


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("max_grad_norm", [None, 0.01])
def test_it_takes_the_same_steps_as_torch(weight_decay, max_grad_norm):
    ours = network()
    theirs = network()
    theirs.load_state_dict(ours.state_dict())
    optimizer = Optimizer(
        ours.parameters(), 0.01, max_grad_norm=max_grad_norm, weight_decay=weight_decay
    )
    kind = torch.optim.AdamW if weight_decay else torch.optim.Adam
    reference = kind(theirs.parameters(), 0.01, weight_decay=weight_decay)
    x = torch.linspace(-1, 1, 12).view(4, 3)
    for _ in range(5):
        optimizer.step(ours(x).square().mean())
        reference.zero_grad()
        theirs(x).square().mean().backward()
        if max_grad_norm:
            nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_first_step_of_adam_is_the_learning_rate_in_the_direction_of_the_gradient():
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    Optimizer([weight], 0.1).step((weight * torch.tensor([3.0, -5.0])).sum())
    assert_close(weight.detach().numpy(), [0.9, -1.9])


def test_it_reports_the_norm_before_clipping():
    weight = nn.Parameter(torch.zeros(2))
    norm = Optimizer([weight], 0.1, max_grad_norm=1.0).step(
        (weight * torch.tensor([3.0, 4.0])).sum()
    )
    assert norm == pytest.approx(5.0)


def test_gradients_of_other_losses_are_forgotten():
    actor, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    twin = nn.Linear(2, 1)
    twin.load_state_dict(critic.state_dict())
    optimizers = [Optimizer(net.parameters(), 0.1) for net in (actor, critic, twin)]
    optimizers[0].step(critic(actor(torch.ones(1, 2))).sum())
    for net, optimizer in ((critic, optimizers[1]), (twin, optimizers[2])):
        optimizer.step(net(torch.tensor([[1.0, -1.0]])).square().sum())
    assert torch.equal(critic.weight, twin.weight)


def test_parameters_that_are_frozen_stay_as_they_are():
    net = network()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    Optimizer(net.parameters(), 0.1).step(net(torch.ones(1, 3)).sum())
    assert torch.equal(net[0].weight, before)


def test_a_restored_optimizer_goes_on_exactly():
    x = torch.linspace(-1, 1, 12).view(4, 3)
    nets = [network(), network()]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [Optimizer(net.parameters(), 0.01) for net in nets]
    for _ in range(3):
        optimizers[0].step(nets[0](x).square().mean())
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    for net, optimizer in zip(nets, optimizers, strict=True):
        for _ in range(3):
            optimizer.step(net(x).square().mean())
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_state_of_another_model_is_refused():
    net = network()
    optimizer = Optimizer(net.parameters(), 0.1)
    optimizer.step(net(torch.ones(1, 3)).sum())
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match="26 parameters, but there are 4"):
        Optimizer(nn.Linear(3, 1).parameters(), 0.1).load_state_dict(state)


def test_nothing_to_train_is_an_error():
    with pytest.raises(ValueError, match="no parameters"):
        Optimizer([], 0.1)


def test_mixed_dtypes_are_an_error():
    with pytest.raises(ValueError, match="one dtype"):
        Optimizer([nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1).double())], 0.1)


def test_a_state_does_not_bring_its_learning_rate():
    one, other = (Optimizer([nn.Parameter(torch.ones(2))], rate) for rate in (0.1, 0.01))
    other.load_state_dict(one.state_dict())
    assert other.learning_rate == 0.01
