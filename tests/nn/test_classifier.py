"""The success classifier: what it takes, what it gives, and where it begins."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from guerdon.config.errors import ConfigError
from guerdon.config.validation import validated
from guerdon.nn import seeded
from guerdon.nn.classifier import BinaryRewardClassifier, ClassifierConfig

SMALL = {"image_size": [3, 32, 32], "width": 4, "hidden_dim": 8, "num_spatial_blocks": 2}


def classifier(seed=0, **options):
    with seeded(seed):
        return BinaryRewardClassifier(ClassifierConfig(**{**SMALL, **options})).eval()


def pixels(number=3, size=(3, 32, 32), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (number, *size), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("size", [[3, 64, 64], [1, 40, 24], [6, 16, 16]])
def test_one_logit_for_each_frame_of_any_size(size):
    model = classifier(image_size=size)
    assert model({"base_camera": pixels(5, size)}).shape == (5,)


def test_bytes_floats_and_any_order_of_channels_mean_the_same():
    model, images = classifier(), pixels()
    expected = model({"base_camera": images})
    assert torch.equal(model({"base_camera": images.float() / 255}), expected)
    last = images.permute(0, 2, 3, 1).contiguous()
    torch.testing.assert_close(model({"base_camera": last}), expected)


def test_a_generator_augments_bytes_alone():
    model, images = classifier(), {"base_camera": pixels()}

    def augmented(seed, images=images):
        return model(images, torch.Generator().manual_seed(seed))

    assert torch.equal(augmented(0), augmented(0))
    assert not torch.equal(augmented(0), augmented(1))
    assert not torch.equal(augmented(0), model(images))
    floats = {"base_camera": images["base_camera"].float() / 255}
    assert torch.equal(augmented(0, floats), model(floats))


def test_pixels_are_normalised_once_by_the_statistics_of_imagenet():
    model = classifier()
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    images[:, 1] = 255
    normal = model.normalised("base_camera", {"base_camera": images})[0, :, 0, 0]
    expected = [-0.485 / 0.229, (1 - 0.456) / 0.224, -0.406 / 0.225]
    torch.testing.assert_close(normal, torch.tensor(expected))


def test_the_scale_of_a_frame_does_not_depend_on_the_others_in_its_batch():
    model, dark = classifier(), torch.full((1, 3, 32, 32), 1, dtype=torch.uint8)
    bright = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    both = model({"base_camera": torch.cat([dark, bright])})
    torch.testing.assert_close(both[:1], model({"base_camera": dark}))


def test_the_memory_is_channels_last():
    normal = classifier().normalised("base_camera", {"base_camera": pixels()})
    assert normal.is_contiguous(memory_format=torch.channels_last)


def test_wrong_images_are_named():
    model = classifier()
    with pytest.raises(ValueError, match="needs images of base_camera, but got only wrist"):
        model({"wrist": pixels()})
    with pytest.raises(ValueError, match=r"'base_camera' have shape \[3, 16, 16\].*\[3, 32, 32\]"):
        model({"base_camera": pixels(size=(3, 16, 16))})
    with pytest.raises(ValueError, match="values from 0 to 255: give uint8, or floats"):
        model({"base_camera": pixels().float()})
    with pytest.raises(TypeError, match=r"are torch\.int64"):
        model({"base_camera": pixels().long()})


def test_every_camera_has_its_own_encoder_and_counts():
    model = classifier(image_keys=["front", "wrist"])
    images = {"front": pixels(), "wrist": pixels(seed=1), "unused": pixels(seed=2)}
    base = model(images)
    for key in ("front", "wrist"):
        assert not torch.equal(model({**images, key: pixels(seed=5)}), base)
    swapped = model({"front": images["wrist"], "wrist": images["front"]})
    assert not torch.allclose(swapped, base)
    assert len(model.encoders) == 2
    assert model.head[0].in_features == 16


def test_every_parameter_learns():
    model = classifier(image_keys=["front", "wrist"]).train()
    model({"front": pixels(), "wrist": pixels(seed=1)}).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_the_documented_size_at_full_width():
    model = BinaryRewardClassifier(ClassifierConfig(width=64))
    assert sum(p.numel() for p in model.encoders.parameters()) == pytest.approx(4.9e6, rel=0.01)
    assert model.poolings[0].kernel.shape == (512, 2, 2, 8)
    assert float(model.poolings[0].kernel.detach().std()) == pytest.approx(0.5, rel=0.05)


def test_dropout_is_only_for_training():
    model, images = classifier(dropout=0.5), {"base_camera": pixels()}
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))


# --- pretrained encoders


def test_a_frozen_encoder_without_weights_is_refused_by_the_names_of_both_keys():
    for options in (
        {"freeze_encoder": True, "use_pretrain": True},
        {"freeze_encoder": True, "use_pretrain": False, "pretrained_encoder_path": "x"},
    ):
        with pytest.raises(ConfigError, match=r"freeze_encoder=false or name reward.model.pretr"):
            validated(ClassifierConfig, options, "reward.model")


def test_nothing_to_load_is_fine_for_an_encoder_that_learns():
    assert classifier(use_pretrain=True).encoders[0][0].weight.requires_grad


def test_an_exported_encoder_is_loaded_into_every_camera(tmp_path):
    path = tmp_path / "encoder.safetensors"
    first = classifier(seed=1, image_keys=["front", "wrist"])
    first.export_encoder(path, "wrist")
    second = classifier(
        seed=2, image_keys=["a", "b"], pretrained_encoder_path=str(path), freeze_encoder=True
    )
    for encoder in second.encoders:
        for name, weight in encoder.state_dict().items():
            assert torch.equal(weight, first.encoders[1].state_dict()[name])
    images = {"a": pixels(), "b": pixels()}
    second(images).sum().backward()
    assert all(p.grad is None for p in second.encoders.parameters())
    assert all(p.grad is not None for p in second.head.parameters())


def test_use_pretrain_false_reads_nothing(tmp_path):
    path = str(tmp_path / "none.safetensors")
    classifier(pretrained_encoder_path=path, use_pretrain=False)
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors, which is missing"):
        classifier(pretrained_encoder_path=path)


def test_a_checkpoint_needs_no_pretrained_file(tmp_path):
    config = ClassifierConfig(
        **SMALL, pretrained_encoder_path=str(tmp_path / "gone"), freeze_encoder=True
    )
    BinaryRewardClassifier(config, load_pretrained=False)


def test_weights_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "encoder.safetensors"
    classifier().export_encoder(path)
    weights = load_file(path)

    def refused(changed, match):
        save_file(changed, path)
        model = classifier()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(ValueError, match=match):
            model.load_encoder(path)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    refused(
        {k: v for k, v in weights.items() if k != "0.weight"},
        r'Missing key\(s\) in state_dict: "0.weight"',
    )
    refused({**weights, "fc.weight": torch.zeros(1)}, r'Unexpected key\(s\).*"fc.weight"')
    refused(
        {**weights, "1.bias": torch.zeros(3)},
        r"(?s)width or .* may differ.*mismatch for 1.bias.*\[3\].*\[4\]",
    )


def test_files_that_could_run_code_are_not_read(tmp_path):
    path = tmp_path / "resnet10_pretrained.pt"
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"is not a safetensors file.*convert it once"):
        classifier(pretrained_encoder_path=str(path))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"x")
    with pytest.raises(ValueError, match="is damaged"):
        classifier(pretrained_encoder_path=str(damaged))


def test_a_camera_to_export_has_to_be_there(tmp_path):
    with pytest.raises(ValueError, match="no camera 'wrist': choose from base_camera"):
        classifier().export_encoder(tmp_path / "x.safetensors", "wrist")


def test_a_camera_is_named_once():
    with pytest.raises(ConfigError, match="names a camera twice"):
        validated(ClassifierConfig, {"image_keys": ["a", "a"]}, "reward.model")
