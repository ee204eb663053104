import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.nn import ImageEncoder, ModelConfig, make_encoder
from guerdon.nn.convolution import resnet10
from tests.processes import Program


def images(*shape, dtype=np.uint8):
    return spaces.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("nature", (4, 84, 84), 512),
        ("nature", (36, 40, 3), 512),
        ("impala", (7, 7, 3), 256),
        ("resnet10", (3, 32, 48), 256),
        ("auto", (4, 84, 84), 512),
        ("auto", (16, 16, 3), 256),
    ],
)
def test_features_of_images(name, shape, size):
    encoder = make_encoder(images(*shape), ModelConfig(encoder=name, orthogonal=False))
    for lead in ((2,), (2, 1), ()):
        features = encoder(torch.zeros(*lead, *shape, dtype=torch.uint8))
        assert features.shape == (*lead, size)


def test_images_are_scaled_only_if_they_are_bytes():
    encoder = make_encoder(images(3, 8, 8), ModelConfig())
    values = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(encoder.to_images(values), values / 255)
    assert torch.equal(encoder.to_images(values.float()), values.float())


def test_channels_last_are_moved_to_the_front():
    encoder = make_encoder(images(8, 9, 3), ModelConfig())
    values = torch.randint(0, 256, (2, 8, 9, 3), dtype=torch.uint8)
    torch.testing.assert_close(encoder.to_images(values)[1, 2], values[1, :, :, 2] / 255)


def test_the_frames_of_a_stack_become_channels():
    encoder = make_encoder(images(2, 8, 9, 3), ModelConfig())
    values = torch.randint(0, 256, (1, 2, 8, 9, 3), dtype=torch.uint8)
    moved = encoder.to_images(values)
    assert moved.shape == (1, 6, 8, 9)
    torch.testing.assert_close(moved[0, 3 + 2], values[0, 1, :, :, 2] / 255)


def test_nature_says_which_images_are_too_small():
    with pytest.raises(ValueError, match="at least 36x36, but these are 16x20: use encoder=impala"):
        make_encoder(images(3, 16, 20), ModelConfig(encoder="nature"))


def test_the_width_of_a_resnet_is_that_of_its_first_stage():
    assert resnet10(3, width=8)(torch.zeros(2, 3, 32, 32)).shape == (2, 8 * 8, 1, 1)


def test_a_resnet_gives_each_image_the_same_features_in_any_batch():
    encoder = ImageEncoder(images(3, 32, 32), resnet10(3, width=8), 7, orthogonal=False)
    values = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(encoder(values)[2:3], encoder(values[2:3]))


BACKWARD = """
import torch
from guerdon.nn.convolution import resnet10
torch.set_num_threads(1)
images = torch.rand(4, 3, 256, 256).contiguous(memory_format=torch.channels_last)
network = resnet10(3, width=4)
for _ in range(2):
    network(images).sum().backward()
"""


def test_a_narrow_resnet_can_be_trained_on_large_images():
    with Program("-c", BACKWARD) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.parametrize("name", ["nature", "impala", "resnet10"])
def test_every_layer_gets_a_gradient(name):
    encoder = make_encoder(images(40, 40, 3), ModelConfig(encoder=name))
    encoder(torch.randint(0, 256, (2, 40, 40, 3), dtype=torch.uint8)).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def test_weights_are_plain_in_memory_so_that_they_can_be_saved():
    encoder = make_encoder(images(40, 40, 3), ModelConfig())
    encoder(torch.zeros(2, 40, 40, 3, dtype=torch.uint8))
    assert all(parameter.is_contiguous() for parameter in encoder.parameters())
