import pytest
import torch
from torch import nn

from guerdon.nn.target import frozen, make_target, update_target


def network(value):
    net = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.data.fill_(value)
    return net


def test_a_target_is_a_copy_that_is_not_trained():
    net = network(2.0)
    target = make_target(net)
    assert not any(p.requires_grad for p in target.parameters())
    net[0].weight.data.fill_(5.0)
    assert target[0].weight.item() == 2.0


@pytest.mark.parametrize(("tau", "weight"), [(1.0, 6.0), (0.25, 3.0)])
def test_weights_move_by_tau_and_buffers_are_copied(tau, weight):
    target, net = make_target(network(2.0)), network(6.0)
    update_target(target, net, tau)
    assert {p.item() for p in target.parameters()} == {weight}
    assert {b.item() for b in target.buffers()} == {6.0}


def test_a_hard_update_copies_every_bit():
    target, net = nn.Linear(50, 50), nn.Linear(50, 50)
    update_target(target, net)
    assert torch.equal(target.weight, net.weight)


def test_a_frozen_network_passes_gradients_to_its_inputs_only():
    net, x = nn.Linear(2, 1), torch.ones(1, 2, requires_grad=True)
    with frozen(net):
        net(x).sum().backward()
    assert net.weight.grad is None
    assert x.grad is not None
    assert net.weight.requires_grad
