import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from guerdon.compat.nervex import rl_utils
from guerdon.compat.nervex.rl_utils import categorical_projection, quantile_td_error
from tests.gradients import gradient_is_right, learns

T = torch.tensor
ATOMS = T([0.0, 1.0, 2.0])
END = T([0.0, 1.0])  # the second row has terminated
LOGIT = T([[0.25, 0.75], [0.5, 0.5]]).log()
ENTROPY = [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), math.log(2)]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def q_data(reward, weight=None, done=END):
    return rl_utils.q_nstep_td_data(
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
        "dist_1step_td",
        "dist_nstep_td",
        "iqn_nstep_td",
        "td_lambda",
        "ppo",
        "a2c",
        "vtrace",
        "coma",
    ]:
        assert hasattr(rl_utils, f"{name}_data")
        assert callable(getattr(rl_utils, f"{name}_error"))
    for name in [
        "create_noise_generator",
        "q_nstep_td_error_with_rescale",
        "generalized_lambda_returns",
        "ppo_error_continous",
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
        "Adder",
    ]:
        assert hasattr(rl_utils, name)


def test_the_documented_signature_of_the_nstep_error():
    parameters = inspect.signature(rl_utils.q_nstep_td_error).parameters
    assert list(parameters) == ["data", "gamma", "nstep", "criterion"]
    assert parameters["nstep"].default == 1
    assert list(rl_utils.q_nstep_td_data._fields) == [
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
    data = rl_utils.nstep_return_data(reward, T([10.0, 10]), END)
    # 1 + 0.5 * 2 + 0.25 * 10 = 4.5;  terminated: 1 + 0.5 * 2 = 2
    assert rl_utils.nstep_return(data, 0.5, 2).tolist() == [4.5, 2]
    assert rl_utils.nstep_return(data._replace(done=END.bool()), 0.5, 2).tolist() == [4.5, 2]
    with pytest.raises(ValueError, match="nstep is 3, and reward has 2 rows"):
        rl_utils.nstep_return(data, 0.5, 3)


def test_the_nstep_error_of_q_values():
    data = q_data(T([[1.0, 1], [2, 2]]))
    # targets 1 + 1 + 0.25 * 5 = 3.25 and 1 + 1 = 2; errors 1.25 and -1; (1.5625 + 1) / 2
    loss = rl_utils.q_nstep_td_error(data, 0.5, nstep=2)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(1.28125)
    weighted = rl_utils.q_nstep_td_error(data._replace(weight=T([0.0, 3])), 0.5, nstep=2)
    assert weighted.item() == pytest.approx(1.5)  # 3 * 1 / 2
    absolute = rl_utils.q_nstep_td_error(
        data, 0.5, nstep=2, criterion=torch.nn.L1Loss(reduction="none")
    )
    assert absolute.item() == pytest.approx(1.125)  # (1.25 + 1) / 2


def test_one_step_is_the_nstep_error_with_one_step():
    data = q_data(T([[1.0, 1]]), weight=T([1.0, 2]))
    one = rl_utils.q_1step_td_data(*data[:4], data.reward[0], *data[5:])
    # targets 1 + 0.5 * 5 = 3.5 and 1; errors 1.5 and -2; (2.25 + 2 * 4) / 2
    assert rl_utils.q_1step_td_error(one, 0.5).item() == pytest.approx(5.125)
    assert rl_utils.q_nstep_td_error(data, 0.5).item() == pytest.approx(5.125)
    smooth = rl_utils.q_1step_td_error(one, 0.5, torch.nn.L1Loss(reduction="none"))
    assert smooth.item() == pytest.approx(2.75)  # (1.5 + 2 * 2) / 2


def test_only_the_prediction_learns():
    data = q_data(T([[1.0, 1]]))._asdict()
    del data["weight"], data["done"]

    def loss(**tensors):
        return rl_utils.q_nstep_td_error(
            rl_utils.q_nstep_td_data(**tensors, done=END, weight=None), 0.5
        )

    assert learns(loss, **data) == {"q"}


# --- values


def test_the_errors_of_values():
    one = rl_utils.v_1step_td_data(T([1.0, 1]), T([4.0, 4]), T([2.0, 2]), END, None)
    # errors 2 + 0.5 * 4 - 1 = 3 and 2 - 1 = 1
    assert rl_utils.v_1step_td_error(one, 0.5).item() == 5
    assert rl_utils.v_1step_td_error(one._replace(weight=T([0.0, 1])), 0.5).item() == 0.5
    assert rl_utils.v_1step_td_error(one._replace(done=None), 0.5).item() == 9


def test_the_error_of_td_lambda():
    data = rl_utils.td_lambda_data(T([[0.5], [3.0], [4.0]]), T([[1.0], [2.0]]), None)
    # returns 2 + 0.5 * 4 = 4 and 1 + 0.5 * (0.5 * 3 + 0.5 * 4) = 2.75; errors 1 and 2.25
    loss = rl_utils.td_lambda_error(data, gamma=0.5, lambda_=0.5)
    assert loss.item() == pytest.approx(0.5 * (1 + 2.25**2) / 2)
    weight = T([[2.0], [0.0]])
    loss = rl_utils.td_lambda_error(data._replace(weight=weight), gamma=0.5, lambda_=0.5)
    assert loss.item() == pytest.approx(0.5 * 2 * 2.25**2 / 2)


def test_gae_bootstraps_through_truncation_and_not_through_an_end():
    value, next_value = T([[0.5], [1], [1.5]]), T([[1], [4], [2.0]])
    reward, none = T([[1.0], [2], [3]]), torch.zeros(3, 1)
    flag = T([[0.0], [1], [0]])
    # see test_returns: row 1 is 2 + 0.9 * 4 - 1 = 4.6 truncated, 2 - 1 = 1 terminated
    truncated = rl_utils.gae(rl_utils.gae_data(value, next_value, reward, none, flag), 0.9, 0.5)
    assert truncated[:, 0].tolist() == pytest.approx([3.47, 4.6, 3.3])
    terminated = rl_utils.gae(rl_utils.gae_data(value, next_value, reward, flag), 0.9, 0.5)
    assert terminated[:, 0].tolist() == pytest.approx([1.85, 1, 3.3])
    value.requires_grad_()
    assert not rl_utils.gae(rl_utils.gae_data(value, next_value, reward, none, flag)).requires_grad


# --- distributions of the return


def test_the_errors_of_c51():
    dist = T([[[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]])
    next_dist = T([[[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]]])
    one = rl_utils.dist_1step_td_data(dist, next_dist, T([0]), T([1]), T([0.5]), T([0.0]), T([2.0]))
    # target 0.1, 0.25, 0.65: see the projection below
    expected = 2 * (0.1 * math.log(2) + 0.9 * math.log(4))
    assert rl_utils.dist_1step_td_error(one, 1.0, 0.0, 2.0, 3).item() == pytest.approx(expected)
    # two rewards of 0.25 with gamma 1 are the same
    two = rl_utils.dist_nstep_td_data(*one[:4], T([[0.25], [0.25]]), T([0.0]), T([2.0]))
    assert rl_utils.dist_nstep_td_error(two, 1.0, 0.0, 2.0, 3, nstep=2).item() == (
        pytest.approx(expected)
    )
    # terminated with reward 1: the target is the middle atom, -2 ln 0.25
    end = one._replace(reward=T([1.0]), done=T([1.0]))
    assert rl_utils.dist_1step_td_error(end, 1.0, 0.0, 2.0, 3).item() == pytest.approx(
        2 * math.log(4)
    )


def test_a_probability_of_zero_costs_much_but_not_everything():
    dist = T([[[1.0, 0.0, 0.0]]], requires_grad=True)
    data = rl_utils.dist_1step_td_data(dist, dist, T([0]), T([0]), T([2.0]), T([1.0]), None)
    assert rl_utils.dist_1step_td_error(data, 0.9, 0.0, 2.0, 3).isfinite()


def test_the_errors_of_iqn():
    # errors 1 and -1 at 0.25 and 0.75 cost 0.125 each
    q = T([[[9.0, 0]], [[9, 2]]])
    rows = (q, q, T([1]), T([1]), T([[1.0]]), T([1.0]), T([[0.25], [0.75]]))
    data = rl_utils.iqn_nstep_td_data(*rows, None)
    assert rl_utils.iqn_nstep_td_error(data, 0.9).item() == pytest.approx(0.25)
    weighted = data._replace(weight=T([3.0]))
    assert rl_utils.iqn_nstep_td_error(weighted, 0.9).item() == pytest.approx(0.75)


def test_fractions_of_iqn_belong_to_their_quantiles():
    q, next_q = normal(4, 2, 3), normal(5, 2, 3, seed=1)
    fractions = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    reward = normal(3, 2)
    rest = (T([1, 0]), T([2, 2]), reward, END)
    data = rl_utils.iqn_nstep_td_data(q, next_q, *rest, fractions.reshape(-1, 1), None)
    loss = rl_utils.iqn_nstep_td_error(data, 0.9, nstep=3, kappa=0.5)
    target = reward[0] + 0.9 * reward[1] + 0.81 * reward[2]
    each = []
    for b, (act, next_act) in enumerate([(1, 2), (0, 2)]):
        after = target[b] + 0.9**3 * (1 - END[b]) * next_q[:, b, next_act]
        error = after[None, :] - q[:, b, act, None]
        huber = nn.HuberLoss(reduction="none", delta=0.5)(error, torch.zeros_like(error)) / 0.5
        tilt = (fractions[:, b, None] - (error < 0).float()).abs()
        each.append((tilt * huber).mean(1).sum())
    torch.testing.assert_close(loss, torch.stack(each).mean())


def test_moved_atoms_are_shared_between_their_neighbours():
    # 0.5, 1.5 and 2.5 (clipped to 2):  0.2 / 2 | 0.2 / 2 + 0.3 / 2 | 0.3 / 2 + 0.5
    prob = categorical_projection(T([[0.2, 0.3, 0.5]]), T([0.5]), T([1.0]), ATOMS)
    assert prob[0].tolist() == pytest.approx([0.1, 0.25, 0.65])


def test_atoms_that_fall_on_atoms_keep_their_mass():
    prob = T([[0.2, 0.3, 0.5]])
    assert categorical_projection(prob, T([0.0]), T([1.0]), ATOMS).tolist() == prob.tolist()
    # terminated: everything lies on the reward
    end = categorical_projection(prob, T([1.0]), T([0.0]), ATOMS)
    assert end[0].tolist() == pytest.approx([0, 1, 0])
    assert categorical_projection(prob, T([-9.0]), T([1.0]), ATOMS)[0].tolist() == pytest.approx(
        [1, 0, 0]
    )


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), r=st.floats(-30, 30), discount=st.floats(0, 1))
def test_a_projection_is_a_distribution_and_keeps_the_mean_within_the_support(seed, r, discount):
    generator = torch.Generator().manual_seed(seed)
    prob = torch.rand(1, 51, generator=generator, dtype=torch.float64).softmax(-1)
    support = torch.linspace(-10, 10, 51, dtype=torch.float64)
    result = categorical_projection(
        prob, torch.full_like(prob[:, 0], r), torch.full_like(prob[:, 0], discount), support
    )
    assert (result >= 0).all()
    assert result.sum() == pytest.approx(1)
    mean = (prob * (r + discount * support).clamp(-10, 10)).sum()
    assert (result * support).sum() == pytest.approx(mean.item(), abs=1e-9)


def test_c51_learns_only_its_prediction():
    dist, next_dist = normal(2, 2, 3).softmax(-1), normal(2, 2, 3, seed=1).softmax(-1)
    rest = (T([0, 1]), T([1, 1]))

    def loss(dist, next_dist, reward):
        data = rl_utils.dist_1step_td_data(dist, next_dist, *rest, reward, END, None)
        return rl_utils.dist_1step_td_error(data, 0.9, 0.0, 2.0, 3)

    assert learns(loss, dist=dist, next_dist=next_dist, reward=normal(2)) == {"dist"}
    next_dist, reward = next_dist.double(), normal(2).double()
    assert gradient_is_right(lambda x: loss(x.softmax(-1), next_dist, reward), dist)


def quantile(quantile_tm1, tau, r, discount, quantile_t, kappa=1.0):
    return quantile_td_error(
        T([quantile_tm1]), T([tau]), T([r]), T([discount]), T([quantile_t]), kappa
    ).item()


def test_the_quantile_huber_loss():
    # errors 1 - 0 and 1 - 2; Huber 0.5 each, tilted by 0.25 and |0.75 - 1|
    assert quantile([0.0, 2], [0.25, 0.75], 1.0, 0.0, [7.0]) == pytest.approx(0.25)
    # beyond kappa a line: (1 - 0.25) * 0.25 each
    assert quantile([0.0, 2], [0.25, 0.75], 1.0, 0.0, [7.0], 0.5) == pytest.approx(0.375)
    # without a square: 1 * 0.25 each
    assert quantile([0.0, 2], [0.25, 0.75], 1.0, 0.0, [7.0], 0.0) == pytest.approx(0.5)


def test_quantiles_of_the_target_are_averaged():
    # errors 1 and 3: Huber 0.5 and 2.5, tilted by 0.5: (0.25 + 1.25) / 2
    assert quantile([0.0], [0.5], 0.0, 1.0, [1.0, 3.0]) == pytest.approx(0.75)


def test_fractions_may_differ_by_row():
    rows, tau = normal(2, 3), normal(2, 3).sigmoid()
    whole = quantile_td_error(rows, tau, normal(2), normal(2), normal(2, 4))
    each = [
        quantile_td_error(
            rows[i : i + 1],
            tau[i : i + 1],
            normal(2)[i : i + 1],
            normal(2)[i : i + 1],
            normal(2, 4)[[i]],
        )
        for i in range(2)
    ]
    torch.testing.assert_close(whole, torch.cat(each))


def test_quantile_regression_finds_the_quantiles():
    # Of 0, 1, ... 99 the middles of four equal parts lie at 12, 37, 62 and 87.
    target = torch.arange(100.0)[None]
    guess = torch.zeros(1, 4, requires_grad=True)
    tau = T([[0.125, 0.375, 0.625, 0.875]])
    optimizer = torch.optim.SGD([guess], lr=20.0)
    for _ in range(300):
        optimizer.zero_grad()
        quantile_td_error(guess, tau, T([0.0]), T([1.0]), target).sum().backward()
        optimizer.step()
    assert guess.tolist()[0] == pytest.approx([12, 37, 62, 87], abs=1.0)


def test_quantile_errors_learn_only_their_prediction():
    rows = {
        "quantile_tm1": normal(2, 3),
        "tau_tm1": normal(2, 3).sigmoid(),
        "r_t": normal(2) + 0.1,
        "discount_t": normal(2).sigmoid(),
        "quantile_t": normal(2, 4),
    }
    assert learns(quantile_td_error, **rows) == {"quantile_tm1"}
    targets = list(rows.values())[1:]
    for kappa in (0.0, 0.3, 1.0):
        assert gradient_is_right(lambda x, k=kappa: quantile_td_error(x, *targets, k), normal(2, 3))


# --- policies


def test_the_losses_of_ppo():
    data = rl_utils.ppo_data(
        logit_new=LOGIT,
        logit_old=T([[0.5, 0.5], [0.5, 0.5]]).log(),
        action=T([1, 0]),
        value_new=T([1.0, 3]),
        value_old=T([0.0, 2.9]),
        adv=T([1.0, -1]),
        return_=T([2.0, 1]),
        weight=None,
    )
    loss, info = rl_utils.ppo_error(data)
    # ratios 1.5 (clipped to 1.2) and 1: -(1.2 - 1) / 2
    assert loss.policy_loss.item() == pytest.approx(-0.1)
    assert loss.value_loss.item() == pytest.approx(
        1.81
    )  # 0.5 * (3.24 + 4) / 2: see test_policy_gradient
    assert loss.entropy_loss.item() == pytest.approx(sum(ENTROPY) / 2)
    assert info.approx_kl.item() == pytest.approx((0.5 - math.log(1.5)) / 2, abs=1e-6)
    assert info.clipfrac == 0.5
    plain, _ = rl_utils.ppo_error(data, use_value_clip=False)
    assert plain.value_loss.item() == pytest.approx(1.25)
    weighted, _ = rl_utils.ppo_error(data._replace(weight=T([1.0, 0])))
    assert weighted.policy_loss.item() == pytest.approx(-0.6)
    assert weighted.value_loss.item() == pytest.approx(0.5 * 3.24 / 2)
    steep = data._replace(logit_old=T([[0.5, 0.5], [0.1, 0.9]]).log(), adv=T([0.0, -1]))
    # ratio 0.5 / 0.1 = 5: -(-5) / 2, and bounded at 3 times the advantage
    assert rl_utils.ppo_error(steep)[0].policy_loss.item() == pytest.approx(2.5)
    assert rl_utils.ppo_error(steep, dual_clip=3.0)[0].policy_loss.item() == pytest.approx(1.5)


def test_the_losses_of_a2c():
    data = rl_utils.a2c_data(LOGIT, T([1, 0]), T([1.0, 3]), T([2.0, 1]), T([2.0, 1]), None)
    loss = rl_utils.a2c_error(data)
    assert loss.policy_loss.item() == pytest.approx(-(2 * math.log(0.75) + math.log(0.5)) / 2)
    assert loss.value_loss.item() == pytest.approx(2.5)  # not halved
    assert loss.entropy_loss.item() == pytest.approx(sum(ENTROPY) / 2)
    loss = rl_utils.a2c_error(data._replace(weight=T([0.0, 2])))
    assert loss.policy_loss.item() == pytest.approx(-math.log(0.5))


def test_importance_weights_from_logits():
    behaviour = T([[0.5, 0.5], [0.25, 0.75]]).log()
    weights = rl_utils.compute_importance_weights(LOGIT, behaviour, T([1, 0]))
    assert weights.tolist() == pytest.approx([1.5, 2])
    leaf = LOGIT.clone().requires_grad_()
    assert not rl_utils.compute_importance_weights(leaf, behaviour, T([1, 0])).requires_grad
    assert rl_utils.compute_importance_weights(leaf, behaviour, T([1, 0]), True).requires_grad


def test_the_losses_of_vtrace():
    # ratios 2 and 0.5 of probabilities 0.5 / 0.25 and 0.25 / 0.5
    target, behaviour = T([[[0.5, 0.5]], [[0.25, 0.75]]]), T([[[0.25, 0.75]], [[0.5, 0.5]]])
    value = T([[0.5], [1.0], [2.0]])
    data = rl_utils.vtrace_data(
        target.log(), behaviour.log(), T([[0], [0]]), value, T([[1.0], [2.0]]), None
    )
    loss = rl_utils.vtrace_error(data, gamma=0.5, lambda_=1.0)
    # targets 2 and 2, advantages 1.5 and 1
    assert loss.policy_loss.item() == pytest.approx(-(1.5 * math.log(0.5) + math.log(0.25)) / 2)
    assert loss.value_loss.item() == pytest.approx((1.5**2 + 1) / 2)
    assert loss.entropy_loss.item() == pytest.approx(sum(ENTROPY) / 2)
    # errors 1 * (1 + 0.5 - 0.5) = 1 and 0.5 * (2 + 1 - 1) = 1; corrections 1 + 0.5 * 1 * 1 and 1
    # of the values 0.5 and 1
    wide = rl_utils.vtrace_error(data, 0.5, 1.0, rho_pg_clip_ratio=2.0)
    assert wide.policy_loss.item() == pytest.approx(-(3 * math.log(0.5) + math.log(0.25)) / 2)


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({"rho_clip_ratio": 2.0}, 3),  # error 2 in row 0, correction 2 + 0.5 * 1 * 1
        ({"c_clip_ratio": 2.0}, 2.5),  # correction 1 + 0.5 * 2 * 1
        ({"lambda_": 0.5}, 1.75),  # correction 1 + 0.25 * 1
    ],
)
def test_each_bound_of_vtrace_bounds_its_own_weight(options, target):
    target_policy = T([[[0.5, 0.5]], [[0.25, 0.75]]]).log()
    behaviour = T([[[0.25, 0.75]], [[0.5, 0.5]]]).log()
    value, act = T([[0.5], [1.0], [2.0]]), T([[0], [0]])
    data = rl_utils.vtrace_data(target_policy, behaviour, act, value, T([[1.0], [2.0]]), None)
    loss = rl_utils.vtrace_error(data, gamma=0.5, **{"lambda_": 1.0, **options})
    assert loss.value_loss.item() == pytest.approx(((target - 0.5) ** 2 + 1) / 2)
    assert loss.policy_loss.item() == pytest.approx(-(1.5 * math.log(0.5) + math.log(0.25)) / 2)


def test_vtrace_on_policy_is_the_discounted_return():
    logit, act = normal(6, 2, 3), torch.zeros(6, 2, dtype=torch.long)
    value, reward = normal(7, 2, seed=1), normal(6, 2, seed=2)
    loss = rl_utils.vtrace_error(
        rl_utils.vtrace_data(logit, logit, act, value, reward, None), 0.9, 1.0
    )
    target, later = [], value[-1]
    for row in reversed(reward):
        later = row + 0.9 * later
        target.insert(0, later)
    advantage = torch.stack(target) - value[:-1]
    log_prob = logit.log_softmax(-1)[..., 0]
    torch.testing.assert_close(loss.value_loss, advantage.square().mean())
    torch.testing.assert_close(loss.policy_loss, -(log_prob * advantage).mean())


def test_targets_of_vtrace_and_upgo_learn_nothing():
    behaviour, act = normal(3, 2, 2, seed=3), torch.zeros(3, 2, dtype=torch.long)

    def vtrace(logit, value, reward):
        data = rl_utils.vtrace_data(logit, behaviour, act, value, reward, None)
        return rl_utils.vtrace_error(data).policy_loss

    def upgo(logit, value, reward):
        return rl_utils.upgo_loss(logit, torch.ones(3, 2), act, reward, value)

    rows = {"logit": normal(3, 2, 2), "value": normal(4, 2), "reward": normal(3, 2)}
    assert learns(vtrace, **rows) == {"logit"}
    assert learns(upgo, **rows) == {"logit"}


def test_the_loss_of_upgo():
    # row 2: 1 + 2 = 3; row 2 went well (3 >= 0), so row 1: 1 + 3 = 4;
    # row 1 went badly (1 + 0 < 5), so row 0 takes the value: 1 + 5 = 6
    # values 0, 5, 0: advantages 6, -1, 3
    values = T([[0.0], [5], [0], [2]])
    logit = T([[[0.5, 0.5]]] * 3).log()
    act, rewards = torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1)
    rhos = T([[1.0], [1], [0.5]])
    loss = rl_utils.upgo_loss(logit, rhos, act, rewards, values)
    assert loss.item() == pytest.approx(math.log(2) * (6 - 1 + 1.5) / 3)
    masked = rl_utils.upgo_loss(logit, rhos, act, rewards, values, mask=T([[1.0], [0], [0]]))
    assert masked.item() == pytest.approx(math.log(2) * 6 / 3)


def test_the_losses_of_coma():
    # two steps, one team of two agents
    logit = LOGIT.expand(2, 1, 2, 2)
    act = T([[[1, 0]], [[1, 0]]])
    q_value = T([[1.0, 3.0], [4.0, 2.0]]).expand(2, 1, 2, 2)
    data = rl_utils.coma_data(logit, act, q_value, 2 * q_value, T([[1.0], [7.0]]), None)
    loss = rl_utils.coma_error(data, gamma=0.5, lambda_=0.8)
    # 3 - (0.25 * 1 + 0.75 * 3) = 0.5;  4 - (0.5 * 4 + 0.5 * 2) = 1
    assert loss.policy_loss.item() == pytest.approx(-(0.5 * math.log(0.75) + math.log(0.5)) / 2)
    # targets 1 + 0.5 * 6 = 4 and 1 + 0.5 * 8 = 5 for 3 and 4
    assert loss.q_value_loss.item() == pytest.approx(1.0)
    assert loss.entropy_loss.item() == pytest.approx(sum(ENTROPY) / 2)
    weighted = rl_utils.coma_error(data._replace(weight=torch.zeros(2, 1, 2)), 0.5, 0.8)
    assert [x.item() for x in weighted] == [0, 0, 0]


def test_coma_learns_from_the_log_probability_times_a_constant():
    act, q_value = T([[[0, 2]], [[1, 1]]]), normal(2, 1, 2, 3)

    def loss(logit, q_value):
        data = rl_utils.coma_data(logit, act, q_value, q_value, torch.zeros(2, 1), None)
        return rl_utils.coma_error(data, 0.9, 0.8).policy_loss

    logit = normal(2, 1, 2, 3, seed=1).requires_grad_()
    loss(logit, q_value).backward()
    again = logit.detach().clone().requires_grad_()
    probability = again.detach().softmax(-1)
    taken = q_value.gather(-1, act[..., None])[..., 0]
    constant = taken - (probability * q_value).sum(-1)
    log_prob = again.log_softmax(-1).gather(-1, act[..., None])[..., 0]
    (-(log_prob * constant).mean()).backward()
    torch.testing.assert_close(logit.grad, again.grad)
    assert learns(loss, logit=logit, q_value=q_value) == {"logit"}


# --- shapes


B, COLUMN = torch.zeros(3), torch.zeros(3, 1)
FLAT = torch.zeros(2, 1)  # beside [2, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda: categorical_projection(torch.zeros(3, 3), COLUMN, COLUMN, ATOMS),
        lambda: categorical_projection(torch.zeros(3, 3), B[:1], B[:1], ATOMS),
        lambda: categorical_projection(torch.zeros(3, 2), B, B, ATOMS),
        lambda: quantile_td_error(*[torch.zeros(3, 2)] * 2, COLUMN, B, torch.zeros(3, 2)),
        lambda: quantile_td_error(*[torch.zeros(1, 2)] * 2, B, B, torch.zeros(3, 2)),
        lambda: quantile_td_error(torch.zeros(3, 2), COLUMN, B, B, torch.zeros(3, 2)),
        lambda: value_error(v=COLUMN),
        lambda: value_error(next_v=COLUMN),
        lambda: value_error(reward=B[:1]),
        lambda: value_error(done=B[:1]),
        lambda: td_lambda(FLAT),
        lambda: td_lambda(torch.zeros(2, 3), weight=FLAT),
        lambda: vtrace(reward=FLAT),
        lambda: vtrace(value=torch.zeros(3, 1)),
        lambda: vtrace(action=torch.zeros(2, 1, dtype=torch.long)),
        lambda: vtrace(weight=FLAT),
        lambda: upgo(rhos=FLAT),
        lambda: upgo(rewards=FLAT),
        lambda: upgo(bootstrap_values=torch.zeros(3, 1)),
        lambda: coma(action=torch.zeros(2, 1, 1, dtype=torch.long)),
        lambda: coma(q_value=torch.zeros(2, 1, 1, 2)),
        lambda: coma(weight=torch.zeros(2, 1, 1)),
    ],
)
def test_shapes_of_targets_that_would_broadcast_are_refused(call):
    with pytest.raises(ValueError, match=r"shape|axes"):
        call()


def value_error(**rows):
    data = {"v": B, "next_v": B, "reward": B, "done": B, "weight": None, **rows}
    return rl_utils.v_1step_td_error(rl_utils.v_1step_td_data(**data), 0.9)


def td_lambda(reward, weight=None):
    return rl_utils.td_lambda_error(rl_utils.td_lambda_data(torch.zeros(3, 3), reward, weight))


def vtrace(**rows):
    data = {
        "target_output": torch.zeros(2, 3, 2),
        "behaviour_output": torch.zeros(2, 3, 2),
        "action": torch.zeros(2, 3, dtype=torch.long),
        "value": torch.zeros(3, 3),
        "reward": torch.zeros(2, 3),
        "weight": None,
    }
    return rl_utils.vtrace_error(rl_utils.vtrace_data(**{**data, **rows}))


def upgo(**rows):
    data = {
        "target_output": torch.zeros(2, 3, 2),
        "rhos": torch.ones(2, 3),
        "action": torch.zeros(2, 3, dtype=torch.long),
        "rewards": torch.zeros(2, 3),
        "bootstrap_values": torch.zeros(3, 3),
    }
    return rl_utils.upgo_loss(**{**data, **rows})


def coma(**rows):
    data = {
        "logit": torch.zeros(2, 1, 2, 2),
        "action": torch.zeros(2, 1, 2, dtype=torch.long),
        "q_value": torch.zeros(2, 1, 2, 2),
        "target_q_value": torch.zeros(2, 1, 2, 2),
        "reward": torch.zeros(2, 1),
        "weight": None,
    }
    return rl_utils.coma_error(rl_utils.coma_data(**{**data, **rows}), 0.9, 0.8)


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
            rl_utils.q_nstep_td_error(wrong, 0.9)


# --- nerveX's own forms


def test_gae_of_values_and_rewards_alone():
    value, reward = normal(6, 2), normal(5, 2, seed=1)
    none = torch.zeros(5, 2)
    expected = rl_utils.gae(rl_utils.gae_data(value[:-1], value[1:], reward, none), 0.9, 0.8)
    for data in (rl_utils.gae_data(value, reward), rl_utils.gae_data(value=value, reward=reward)):
        torch.testing.assert_close(rl_utils.gae(data, 0.9, 0.8), expected)


def test_lambda_returns_by_hand():
    value, reward = T([[9.0], [1.0], [2.0], [4.0]]), T([[1.0], [2.0], [3.0]])
    # 3 + 0.5 * 4 = 5;  2 + 0.5 * (0.5 * 5 + 0.5 * 2) = 3.75;  1 + 0.5 * (0.5 * 3.75 + 0.5 * 1)
    returns = rl_utils.generalized_lambda_returns(value, reward, 0.5, 0.5)
    assert returns.flatten().tolist() == pytest.approx([2.1875, 3.75, 5.0])
    # One number for each row; the last decay does not matter.
    gamma, decay = T([[0.5], [1.0], [0.5]]), T([[0.0], [1.0], [0.3]])
    returns = rl_utils.generalized_lambda_returns(value, reward, gamma, decay)
    assert returns.flatten().tolist() == pytest.approx([1.5, 7.0, 5.0])


def test_td_errors_of_rescaled_values():
    q, next_q = normal(4, 3), normal(4, 3, seed=1)
    reward, done = normal(2, 4, seed=2), T([0.0, 0, 1, 0])
    action, next_action = T([0, 1, 2, 0]), T([2, 1, 0, 0])
    data = rl_utils.q_nstep_td_data(q, next_q, action, next_action, reward, done, None)
    rescaled = rl_utils.q_nstep_td_error_with_rescale(data, 0.9, nstep=2)
    value = rl_utils.value_inv_transform(next_q.gather(1, next_action[:, None])[:, 0])
    target = rl_utils.value_transform(reward[0] + 0.9 * reward[1] + 0.81 * value * (1 - done))
    expected = (q.gather(1, action[:, None])[:, 0] - target).square().mean()
    torch.testing.assert_close(rescaled, expected)
    same = rl_utils.q_nstep_td_error_with_rescale(
        data, 0.9, 2, trans_fn=lambda x: x, inv_trans_fn=lambda x: x
    )
    torch.testing.assert_close(same, rl_utils.q_nstep_td_error(data, 0.9, nstep=2))


def test_ppo_of_continuous_actions():
    mu, sigma, action = normal(5, 2), normal(5, 2, seed=1).exp(), normal(5, 2, seed=2)
    old = (normal(5, 2, seed=3), normal(5, 2, seed=4).exp())
    adv, value, returns = normal(5, seed=5), normal(5, seed=6), normal(5, seed=7)
    data = rl_utils.ppo_data((mu, sigma), old, action, value, value, adv, returns, None)
    loss, info = rl_utils.ppo_error_continous(data, clip_ratio=0.2)
    now, before = (torch.distributions.Normal(*each) for each in ((mu, sigma), old))
    ratio = (now.log_prob(action) - before.log_prob(action)).sum(-1).exp()
    bounded = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
    torch.testing.assert_close(loss.policy_loss, -bounded.mean())
    torch.testing.assert_close(loss.value_loss, 0.5 * (value - returns).square().mean())
    torch.testing.assert_close(loss.entropy_loss, now.entropy().sum(-1).mean())
    assert 0 <= float(info.clipfrac) <= 1


# --- noise


def test_noise_by_name():
    gauss = rl_utils.create_noise_generator("gauss", {"mu": 5.0, "sigma": 0.0})
    assert gauss((2, 3), "cpu").tolist() == [[5.0] * 3] * 2
    path = rl_utils.create_noise_generator("ou", {"theta": 1.0, "dt": 0.5, "sigma": 0.0, "mu": 1.0})
    assert [path((1,), "cpu").item() for _ in range(2)] == [0.5, 0.75]
    path.reset()
    assert path((1,), "cpu").item() == 0.5
    with pytest.raises(KeyError, match="unknown noise_type 'pink': use one of 'gauss', 'ou'"):
        rl_utils.create_noise_generator("pink", {})


def test_noise_draws_from_its_generator():
    def drawn(seed):
        noise = rl_utils.create_noise_generator("gauss", {})
        noise.generator = torch.Generator().manual_seed(seed)
        return noise((3,), "cpu")

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
