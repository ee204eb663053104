import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.data import Batch
from guerdon.nn import MLP, ModelConfig, make_encoder
from guerdon.nn.spaces import Flatten, channels_first, image_shape, is_image

SMALL = ModelConfig(hidden=[5])


def box(*shape, dtype=np.float32):
    high = 255 if dtype == np.uint8 else 1
    return spaces.Box(0, high, shape, dtype)


simple_spaces = st.one_of(
    st.lists(st.integers(1, 5), min_size=0, max_size=2).map(lambda shape: box(*shape)),
    st.integers(1, 4).map(lambda size: box(size, dtype=np.uint8)),
    st.builds(
        lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)
    ),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
)
all_spaces = st.recursive(
    simple_spaces,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def sample(space, lead):
    """Tensors of shape [*lead, ...] in the way a batch would hold them."""
    if isinstance(space, spaces.Dict):
        return {key: sample(part, lead) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(part, lead) for part in space.spaces)
    rows = [space.sample() for _ in range(int(np.prod(lead)))]
    return torch.as_tensor(np.array(rows).reshape(*lead, *space.shape))


@settings(max_examples=60)
@given(all_spaces, st.sampled_from([(3,), (2, 3), (1,)]))
def test_any_space_becomes_features_with_any_leading_dimensions(space, lead):
    space.seed(0)
    encoder = make_encoder(space, SMALL)
    features = encoder(sample(space, lead))
    assert features.shape == (*lead, encoder.size) == (*lead, 5)
    assert features.dtype == torch.float32


@settings(max_examples=40)
@given(all_spaces)
def test_time_and_batch_are_encoded_as_their_rows_are(space):
    space.seed(0)
    encoder = make_encoder(space, SMALL)
    observation = sample(space, (2, 3))

    def row(tree):
        if isinstance(tree, dict):
            return {key: row(value) for key, value in tree.items()}
        return tuple(map(row, tree)) if isinstance(tree, tuple) else tree[1]

    torch.testing.assert_close(encoder(observation)[1], encoder(row(observation)))


def test_a_dict_may_come_as_a_batch():
    space = spaces.Dict({"a": box(2), "b": spaces.Discrete(3)})
    encoder = make_encoder(space, SMALL)
    parts = {"a": torch.rand(4, 2), "b": torch.tensor([0, 1, 2, 0])}
    assert torch.equal(encoder(Batch(**parts)), encoder(parts))


def test_discrete_values_are_one_hot_from_their_start():
    flat = Flatten(spaces.Discrete(3, start=5))
    assert flat(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_multi_discrete_values_are_one_hot_side_by_side():
    flat = Flatten(spaces.MultiDiscrete([2, 3]))
    assert flat(torch.tensor([[1, 2]])).tolist() == [[0, 1, 0, 0, 1]]


def test_bytes_are_divided_by_255_and_other_numbers_are_not():
    assert Flatten(box(2, dtype=np.uint8))(
        torch.tensor([[0, 255]], dtype=torch.uint8)
    ).tolist() == [[0.0, 1.0]]
    assert Flatten(box(2, 1))(torch.tensor([[[3.0], [4.0]]])).tolist() == [[3.0, 4.0]]


def test_text_has_no_encoder():
    with pytest.raises(ValueError, match="Text have no encoder"):
        make_encoder(spaces.Text(4), SMALL)


def test_an_mlp_computes_its_layers_in_order():
    mlp = MLP(1, [1, 1], "relu")
    with torch.no_grad():
        for parameter, value in zip(mlp.parameters(), (2.0, 1.0, -1.0, 8.0), strict=True):
            parameter.fill_(value)
    assert mlp(torch.tensor([[3.0], [4.0]])).tolist() == [[1.0], [0.0]]  # relu(8 - relu(2x + 1))


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_gradients_through_every_activation_are_right(activation):
    mlp = MLP(3, [4, 2], activation).double()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mlp, x)


def test_an_mlp_takes_double_observations():
    assert MLP(3, [4])(torch.ones(2, 3, dtype=torch.float64)).dtype == torch.float32


def test_an_mlp_can_be_called_with_other_parameters():
    mlp = MLP(2, [3])
    zeros = {name: torch.zeros_like(value) for name, value in mlp.named_parameters()}
    assert not torch.func.functional_call(mlp, zeros, torch.ones(1, 2)).any()


@pytest.mark.parametrize(
    ("shape", "first", "image"),
    [
        ((4, 84, 84), True, (4, 84, 84)),
        ((84, 84, 3), False, (3, 84, 84)),
        ((8, 8, 8), False, (8, 8, 8)),
        ((4, 40, 50, 3), False, (12, 40, 50)),
        ((4, 3, 40, 50), True, (12, 40, 50)),
        ((40, 50), True, (1, 40, 50)),
    ],
)
def test_the_channels_are_the_smaller_axis_or_the_last(shape, first, image):
    space = box(*shape, dtype=np.uint8)
    assert is_image(space)
    assert channels_first(space) is first
    assert image_shape(space) == image


@pytest.mark.parametrize("space", [box(40, 50), box(3, 4, 5), spaces.Discrete(3), box(9)])
def test_what_is_no_image(space):
    assert not is_image(space)


def test_an_encoder_for_images_refuses_vectors():
    with pytest.raises(ValueError, match="needs images"):
        make_encoder(box(3), ModelConfig(encoder="nature"))


def test_images_pass_an_mlp_if_asked():
    encoder = make_encoder(box(8, 8, 3, dtype=np.uint8), ModelConfig(encoder="mlp", hidden=[5]))
    assert encoder(torch.zeros(2, 8, 8, 3, dtype=torch.uint8)).shape == (2, 5)


def test_images_and_vectors_of_a_dict_are_joined():
    space = spaces.Dict({"camera": box(8, 8, 3, dtype=np.uint8), "joints": box(2)})
    encoder = make_encoder(space, SMALL)
    observation = {
        "camera": torch.zeros(4, 2, 8, 8, 3, dtype=torch.uint8),
        "joints": torch.zeros(4, 2, 2, requires_grad=True),
    }
    features = encoder(observation)
    features.sum().backward()
    assert features.shape == (4, 2, 5)
    assert observation["joints"].grad.abs().sum() > 0
