import inspect
import math

import pytest
import torch

from guerdon import ops
from guerdon.ops import tuples
from tests.ops.gradients import learns

T = torch.tensor
END = T([0.0, 1.0])  # the second row has terminated
LOGIT = T([[0.25, 0.75], [0.5, 0.5]]).log()
ENTROPY = [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), math.log(2)]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def q_data(reward, weight=None, done=END):
    return tuples.q_nstep_td_data(
        q=T([[1.0, 2], [3, 4]]),
        next_n_q=T([[5.0, 6], [7, 8]]),
        action=T([1, 0]),
        next_n_action=T([0, 1]),
        reward=reward,
        done=done,
        weight=weight,
    )


def test_the_documented_names_are_there():
    for name in [
        "q_1step_td",
        "q_nstep_td",
        "v_1step_td",
        "v_nstep_td",
        "dist_1step_td",
        "dist_nstep_td",
        "qrdqn_nstep_td",
        "iqn_nstep_td",
        "td_lambda",
        "ppo",
        "a2c",
        "vtrace",
        "coma",
    ]:
        assert hasattr(ops, f"{name}_data")
        assert callable(getattr(ops, f"{name}_error"))
    for name in [
        "nstep_return_data",
        "nstep_return",
        "gae_data",
        "gae",
        "upgo_loss",
        "compute_importance_weights",
        "value_transform",
        "value_inv_transform",
        "beta_function_map",
        "epsilon_greedy",
    ]:
        assert hasattr(ops, name)
    assert set(ops.__all__) <= set(dir(ops))


def test_the_documented_signature_of_the_nstep_error():
    parameters = inspect.signature(ops.q_nstep_td_error).parameters
    assert list(parameters) == ["data", "gamma", "nstep", "criterion"]
    assert parameters["nstep"].default == 1
    assert list(ops.q_nstep_td_data._fields) == [
        "q",
        "next_n_q",
        "action",
        "next_n_action",
        "reward",
        "done",
        "weight",
    ]


# --- Q-values


def test_the_nstep_target_stops_at_an_end():
    reward = T([[1.0, 1], [2, 2]])
    data = ops.nstep_return_data(reward, T([10.0, 10]), END)
    # 1 + 0.5 * 2 + 0.25 * 10 = 4.5;  terminated: 1 + 0.5 * 2 = 2
    assert ops.nstep_return(data, 0.5, 2).tolist() == [4.5, 2]
    assert ops.nstep_return(data._replace(done=END.bool()), 0.5, 2).tolist() == [4.5, 2]
    with pytest.raises(ValueError, match="nstep is 3, and reward has 2 rows"):
        ops.nstep_return(data, 0.5, 3)


def test_the_nstep_error_of_q_values():
    data = q_data(T([[1.0, 1], [2, 2]]))
    # targets 1 + 1 + 0.25 * 5 = 3.25 and 1 + 1 = 2; errors 1.25 and -1; (1.5625 + 1) / 2
    loss = ops.q_nstep_td_error(data, 0.5, nstep=2)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(1.28125)
    weighted = ops.q_nstep_td_error(data._replace(weight=T([0.0, 3])), 0.5, nstep=2)
    assert weighted.item() == pytest.approx(1.5)  # 3 * 1 / 2
    absolute = ops.q_nstep_td_error(data, 0.5, nstep=2, criterion=torch.nn.L1Loss(reduction="none"))
    assert absolute.item() == pytest.approx(1.125)  # (1.25 + 1) / 2


def test_one_step_is_the_nstep_error_with_one_step():
    data = q_data(T([[1.0, 1]]), weight=T([1.0, 2]))
    one = ops.q_1step_td_data(*data[:4], data.reward[0], *data[5:])
    # targets 1 + 0.5 * 5 = 3.5 and 1; errors 1.5 and -2; (2.25 + 2 * 4) / 2
    assert ops.q_1step_td_error(one, 0.5).item() == pytest.approx(5.125)
    assert ops.q_nstep_td_error(data, 0.5).item() == pytest.approx(5.125)
    smooth = ops.q_1step_td_error(one, 0.5, torch.nn.L1Loss(reduction="none"))
    assert smooth.item() == pytest.approx(2.75)  # (1.5 + 2 * 2) / 2


def test_only_the_prediction_learns():
    data = q_data(T([[1.0, 1]]))._asdict()
    del data["weight"], data["done"]

    def loss(**tensors):
        return ops.q_nstep_td_error(ops.q_nstep_td_data(**tensors, done=END, weight=None), 0.5)

    assert learns(loss, **data) == {"q"}


# --- values


def test_the_errors_of_values():
    one = ops.v_1step_td_data(T([1.0, 1]), T([4.0, 4]), T([2.0, 2]), END, None)
    # errors 2 + 0.5 * 4 - 1 = 3 and 2 - 1 = 1
    assert ops.v_1step_td_error(one, 0.5).item() == 5
    assert ops.v_1step_td_error(one._replace(weight=T([0.0, 1])), 0.5).item() == 0.5
    assert ops.v_1step_td_error(one._replace(done=None), 0.5).item() == 9
    two = ops.v_nstep_td_data(T([1.0, 1]), T([4.0, 4]), T([[2.0, 2], [2, 2]]), END, None)
    # errors 2 + 1 + 0.25 * 4 - 1 = 3 and 2 + 1 - 1 = 2
    assert ops.v_nstep_td_error(two, 0.5, nstep=2).item() == 6.5


def test_the_error_of_td_lambda():
    data = ops.td_lambda_data(T([[0.5], [3.0], [4.0]]), T([[1.0], [2.0]]), None)
    # returns 2 + 0.5 * 4 = 4 and 1 + 0.5 * (0.5 * 3 + 0.5 * 4) = 2.75; errors 1 and 2.25
    loss = ops.td_lambda_error(data, gamma=0.5, lambda_=0.5)
    assert loss.item() == pytest.approx(0.5 * (1 + 2.25**2) / 2)
    weight = T([[2.0], [0.0]])
    loss = ops.td_lambda_error(data._replace(weight=weight), gamma=0.5, lambda_=0.5)
    assert loss.item() == pytest.approx(0.5 * 2 * 2.25**2 / 2)


def test_gae_bootstraps_through_truncation_and_not_through_an_end():
    value, next_value = T([[0.5], [1], [1.5]]), T([[1], [4], [2.0]])
    reward, none = T([[1.0], [2], [3]]), torch.zeros(3, 1)
    flag = T([[0.0], [1], [0]])
    # see test_returns: row 1 is 2 + 0.9 * 4 - 1 = 4.6 truncated, 2 - 1 = 1 terminated
    truncated = ops.gae(ops.gae_data(value, next_value, reward, none, flag), 0.9, 0.5)
    assert truncated[:, 0].tolist() == pytest.approx([3.47, 4.6, 3.3])
    terminated = ops.gae(ops.gae_data(value, next_value, reward, flag), 0.9, 0.5)
    assert terminated[:, 0].tolist() == pytest.approx([1.85, 1, 3.3])
    value.requires_grad_()
    assert not ops.gae(ops.gae_data(value, next_value, reward, none, flag)).requires_grad


# --- distributions of the return


def test_the_errors_of_c51():
    dist = T([[[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]])
    next_dist = T([[[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]]])
    one = ops.dist_1step_td_data(dist, next_dist, T([0]), T([1]), T([0.5]), T([0.0]), T([2.0]))
    # see test_td: target 0.1, 0.25, 0.65
    expected = 2 * (0.1 * math.log(2) + 0.9 * math.log(4))
    assert ops.dist_1step_td_error(one, 1.0, 0.0, 2.0, 3).item() == pytest.approx(expected)
    # two rewards of 0.25 with gamma 1 are the same
    two = ops.dist_nstep_td_data(*one[:4], T([[0.25], [0.25]]), T([0.0]), T([2.0]))
    assert ops.dist_nstep_td_error(two, 1.0, 0.0, 2.0, 3, nstep=2).item() == (
        pytest.approx(expected)
    )
    # terminated with reward 1: the target is the middle atom, -2 ln 0.25
    end = one._replace(reward=T([1.0]), done=T([1.0]))
    assert ops.dist_1step_td_error(end, 1.0, 0.0, 2.0, 3).item() == pytest.approx(2 * math.log(4))


def test_a_probability_of_zero_costs_much_but_not_everything():
    dist = T([[[1.0, 0.0, 0.0]]], requires_grad=True)
    data = ops.dist_1step_td_data(dist, dist, T([0]), T([0]), T([2.0]), T([1.0]), None)
    assert ops.dist_1step_td_error(data, 0.9, 0.0, 2.0, 3).isfinite()


def test_the_errors_of_quantiles():
    # see test_td: errors 1 and -1 at 0.25 and 0.75 cost 0.125 each
    q = T([[[9.0, 9], [0, 2]]])
    data = ops.qrdqn_nstep_td_data(
        q, q, T([1]), T([0]), T([[1.0]]), T([1.0]), T([[0.25], [0.75]]), None
    )
    assert ops.qrdqn_nstep_td_error(data, 0.9).item() == pytest.approx(0.25)
    assert ops.qrdqn_nstep_td_error(data._replace(weight=T([3.0])), 0.9).item() == (
        pytest.approx(0.75)
    )


def test_iqn_is_qrdqn_with_its_own_fractions_and_axes():
    q, next_q = normal(4, 2, 3), normal(5, 2, 3, seed=1)
    fractions = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    rest = (T([1, 0]), T([2, 2]), normal(3, 2), END)
    data = ops.iqn_nstep_td_data(q, next_q, *rest, fractions.reshape(-1, 1), None)
    loss = ops.iqn_nstep_td_error(data, 0.9, nstep=3, kappa=0.5)
    each = []
    for b in range(2):
        row = ops.qrdqn_nstep_td_data(
            q[:, [b]].permute(1, 2, 0),
            next_q[:, [b]].permute(1, 2, 0),
            *(x[..., [b]] for x in rest),
            fractions[:, b],
            None,
        )
        each.append(ops.qrdqn_nstep_td_error(row, 0.9, nstep=3, kappa=0.5))
    torch.testing.assert_close(loss, torch.stack(each).mean())


# --- policies


def test_the_losses_of_ppo():
    data = ops.ppo_data(
        logit_new=LOGIT,
        logit_old=T([[0.5, 0.5], [0.5, 0.5]]).log(),
        action=T([1, 0]),
        value_new=T([1.0, 3]),
        value_old=T([0.0, 2.9]),
        adv=T([1.0, -1]),
        return_=T([2.0, 1]),
        weight=None,
    )
    loss, info = ops.ppo_error(data)
    # ratios 1.5 (clipped to 1.2) and 1: -(1.2 - 1) / 2
    assert loss.policy_loss.item() == pytest.approx(-0.1)
    assert loss.value_loss.item() == pytest.approx(1.81)  # see test_policy_gradient
    assert loss.entropy_loss.item() == pytest.approx(sum(ENTROPY) / 2)
    assert info.approx_kl.item() == pytest.approx((0.5 - math.log(1.5)) / 2, abs=1e-6)
    assert info.clipfrac == 0.5
    plain, _ = ops.ppo_error(data, use_value_clip=False)
    assert plain.value_loss.item() == pytest.approx(1.25)
    weighted, _ = ops.ppo_error(data._replace(weight=T([1.0, 0])))
    assert weighted.policy_loss.item() == pytest.approx(-0.6)
    assert weighted.value_loss.item() == pytest.approx(0.5 * 3.24 / 2)
    steep = data._replace(logit_old=T([[0.5, 0.5], [0.1, 0.9]]).log(), adv=T([0.0, -1]))
    # ratio 0.5 / 0.1 = 5: -(-5) / 2, and bounded at 3 times the advantage
    assert ops.ppo_error(steep)[0].policy_loss.item() == pytest.approx(2.5)
    assert ops.ppo_error(steep, dual_clip=3.0)[0].policy_loss.item() == pytest.approx(1.5)


def test_the_losses_of_a2c():
    data = ops.a2c_data(LOGIT, T([1, 0]), T([1.0, 3]), T([2.0, 1]), T([2.0, 1]), None)
    loss = ops.a2c_error(data)
    assert loss.policy_loss.item() == pytest.approx(-(2 * math.log(0.75) + math.log(0.5)) / 2)
    assert loss.value_loss.item() == pytest.approx(1.25)
    assert loss.entropy_loss.item() == pytest.approx(sum(ENTROPY) / 2)
    loss = ops.a2c_error(data._replace(weight=T([0.0, 2])))
    assert loss.policy_loss.item() == pytest.approx(-math.log(0.5))


def test_importance_weights_from_logits():
    behaviour = T([[0.5, 0.5], [0.25, 0.75]]).log()
    weights = ops.compute_importance_weights(LOGIT, behaviour, T([1, 0]))
    assert weights.tolist() == pytest.approx([1.5, 2])
    leaf = LOGIT.clone().requires_grad_()
    assert not ops.compute_importance_weights(leaf, behaviour, T([1, 0])).requires_grad
    assert ops.compute_importance_weights(leaf, behaviour, T([1, 0]), True).requires_grad


def test_the_losses_of_vtrace():
    # ratios 2 and 0.5 of probabilities 0.5 / 0.25 and 0.25 / 0.5, as in test_off_policy
    target, behaviour = T([[[0.5, 0.5]], [[0.25, 0.75]]]), T([[[0.25, 0.75]], [[0.5, 0.5]]])
    value = T([[0.5], [1.0], [2.0]])
    data = ops.vtrace_data(
        target.log(), behaviour.log(), T([[0], [0]]), value, T([[1.0], [2.0]]), None
    )
    loss = ops.vtrace_error(data, gamma=0.5, lambda_=1.0)
    # targets 2 and 2, advantages 1.5 and 1
    assert loss.policy_loss.item() == pytest.approx(-(1.5 * math.log(0.5) + math.log(0.25)) / 2)
    assert loss.value_loss.item() == pytest.approx(0.5 * (1.5**2 + 1) / 2)
    assert loss.entropy_loss.item() == pytest.approx(sum(ENTROPY) / 2)
    wide = ops.vtrace_error(data, 0.5, 1.0, rho_pg_clip_ratio=2.0)
    assert wide.policy_loss.item() == pytest.approx(-(3 * math.log(0.5) + math.log(0.25)) / 2)


def test_the_loss_of_upgo():
    # returns 6, 4, 3 as in test_off_policy, values 0, 5, 0: advantages 6, -1, 3
    values = T([[0.0], [5], [0], [2]])
    logit = T([[[0.5, 0.5]]] * 3).log()
    act, rewards = torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1)
    rhos = T([[1.0], [1], [0.5]])
    loss = ops.upgo_loss(logit, rhos, act, rewards, values)
    assert loss.item() == pytest.approx(math.log(2) * (6 - 1 + 1.5) / 3)
    masked = ops.upgo_loss(logit, rhos, act, rewards, values, mask=T([[1.0], [0], [0]]))
    assert masked.item() == pytest.approx(math.log(2) * 6 / 3)


def test_the_losses_of_coma():
    # two steps, one team of two agents
    logit = LOGIT.expand(2, 1, 2, 2)
    act = T([[[1, 0]], [[1, 0]]])
    q_value = T([[1.0, 3.0], [4.0, 2.0]]).expand(2, 1, 2, 2)
    data = ops.coma_data(logit, act, q_value, 2 * q_value, T([[1.0], [7.0]]), None)
    loss = ops.coma_error(data, gamma=0.5, lambda_=0.8)
    # advantages 0.5 and 1, see test_coma
    assert loss.policy_loss.item() == pytest.approx(-(0.5 * math.log(0.75) + math.log(0.5)) / 2)
    # targets 1 + 0.5 * 6 = 4 and 1 + 0.5 * 8 = 5 for 3 and 4
    assert loss.q_value_loss.item() == pytest.approx(0.5)
    assert loss.entropy_loss.item() == pytest.approx(sum(ENTROPY) / 2)
    weighted = ops.coma_error(data._replace(weight=torch.zeros(2, 1, 2)), 0.5, 0.8)
    assert [x.item() for x in weighted] == [0, 0, 0]


def test_shapes_that_would_broadcast_are_refused():
    data = q_data(T([[1.0, 1]]))
    for wrong in (
        data._replace(done=END[:, None]),
        data._replace(weight=torch.ones(2, 1)),
        data._replace(reward=torch.ones(1, 1)),
        data._replace(reward=torch.ones(1)),
        data._replace(action=T([[1], [0]])),
    ):
        with pytest.raises(ValueError, match=r"shape|axes"):
            ops.q_nstep_td_error(wrong, 0.9)
