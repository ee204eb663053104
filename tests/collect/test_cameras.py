"""Cameras are asked for by names that observations have."""

import numpy as np
import pytest
from gymnasium import spaces

from guerdon.collect.reward_data import channel_axis, check_cameras
from guerdon.config import ConfigError
from tests.collect.filling import configured


def picture(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


SPACE = spaces.Dict(
    {
        "hand": picture(8, 8, 3),
        "head": picture(1, 8, 8),
        "last": picture(3, 8, 8),
        "wide": picture(8, 9, 3),
        "heat": picture(8, 8, 2),
        "state": spaces.Box(-1, 1, (3,)),
    }
)


@pytest.mark.parametrize(
    ("shape", "size", "axis"),
    [
        ((9, 8, 8, 3), None, 3),
        ((9, 3, 8, 8), None, 1),
        ((9, 3, 8, 4), None, 3),
        ((9, 8, 8, 2), None, None),
        ((9, 8, 8, 2), (2, 4, 4), 3),
        ((9, 3, 8, 8), (2, 4, 4), None),
    ],
)
def test_channels_are_the_axis_that_may_be(shape, size, axis):
    assert channel_axis(shape, size) == axis


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "'base_camera', which in observations of 'Mine-v0' is missing: choose from hand, h"),
        ({"image_keys": ["hand", "haed"]}, "'haed', .* is missing: .* 'head'"),
        ({"image_keys": ["state"]}, r"'state', .* is Box\(.*float32\), no image: choose from ha"),
        ({"image_keys": ["heat"]}, "'heat', .* no image: did you mean 'head'"),
        (
            {"image_keys": ["hand"], "image_size": [1, 8, 8]},
            r"requires images of 1 channels, but those of 'hand' .* are \[8, 8, 3\]",
        ),
        (
            {"image_keys": ["hand", "wide"]},
            r"several sizes \('hand' \[3, 8, 8\], 'wide' \[3, 8, 9\]\), .*: set image_size",
        ),
    ],
)
def test_what_is_no_camera_is_named_with_those_there_are(options, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        check_cameras(SPACE, configured(tmp_path, **options), "Mine-v0")


def test_cameras_that_are_there_pass(tmp_path):
    check_cameras(SPACE, configured(tmp_path, image_keys=["hand", "last"]), "Mine-v0")
    wide = {"image_keys": ["hand", "wide"], "image_size": [3, 4, 4]}
    check_cameras(SPACE, configured(tmp_path, **wide), "Mine-v0")
    two = {"image_keys": ["heat"], "image_size": [2, 4, 4]}
    check_cameras(SPACE, configured(tmp_path, **two), "Mine-v0")


def test_one_image_is_that_of_the_only_camera(tmp_path):
    check_cameras(picture(8, 8, 3), configured(tmp_path), "Mine-v0")
    with pytest.raises(ConfigError, match="'Mine-v0' are one image, but image_keys has several"):
        check_cameras(picture(8, 8, 3), configured(tmp_path, image_keys=["a", "b"]), "Mine-v0")
    with pytest.raises(ConfigError, match=r"'Mine-v0' are no image: .* env.kwargs.obs=both"):
        check_cameras(SPACE["state"], configured(tmp_path), "Mine-v0")
