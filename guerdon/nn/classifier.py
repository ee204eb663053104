"""Success classifier of single frames."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import safetensors
import torch
from pydantic import Field, PositiveInt, model_validator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from guerdon.config.errors import ConfigError
from guerdon.config.schema import Section, check_image_size
from guerdon.data.leaves import check_like
from guerdon.nn.augment import augment
from guerdon.nn.convolution import resnet10

MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's pixels (red, green, blue), as pretrained encoders expect."""
STD = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's pixels."""

ImageSize = Annotated[list[PositiveInt], Field(min_length=3, max_length=3)]


class ClassifierConfig(Section):
    """Options of a success classifier."""

    image_keys: list[str] = Field(default=["base_camera"], min_length=1)
    """Cameras to use; each has its own encoder."""
    image_size: ImageSize = Field(default=[3, 64, 64])
    """Channels, height and width of every image."""
    hidden_dim: int = Field(default=256, ge=1)
    """Features per camera, and size of the head's hidden layer; usually 64 to 512."""
    num_spatial_blocks: int = Field(default=8, ge=1)
    """Number of learned spatial embeddings; usually 4 to 16."""
    width: int = Field(default=16, ge=1)
    """Channels of the first stage of the ResNet-10; 64 is standard and ten times as expensive."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout rate of features; usually 0 to 0.5."""
    normalize: bool = True
    """Whether to normalise pixels by the mean and standard deviation of ImageNet."""
    pretrained_encoder_path: str | None = None
    """Safetensors file of initial encoder weights, as `export_encoder` writes it."""
    use_pretrain: bool | None = None
    """Whether to load ``pretrained_encoder_path``; null loads it if it is set."""
    freeze_encoder: bool = False
    """Whether to freeze the encoder. Its features are then computed once per frame, without
    augmentation."""

    @property
    def pretrained(self) -> str | None:
        """File of initial encoder weights, or None."""
        return None if self.use_pretrain is False else self.pretrained_encoder_path

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.freeze_encoder and self.pretrained is None:
            also = " (with reward.model.use_pretrain=false it is not loaded)"
            raise ConfigError(
                "'reward.model.freeze_encoder' is true, but 'reward.model.pretrained_encoder_path' "
                f"is not set{also if self.pretrained_encoder_path else ''}: features of a "
                "random encoder would not learn; set reward.model.freeze_encoder=false or name "
                "reward.model.pretrained_encoder_path"
            )
        if len(set(self.image_keys)) < len(self.image_keys):
            raise ConfigError(f"'reward.model.image_keys' names a camera twice: {self.image_keys}")
        check_image_size(self.image_size, "reward.model.image_size")
        return self


class BinaryRewardClassifier(nn.Module):
    """Predicts success of frames: a ResNet-10 per camera, and one head.

    Pixels are normalised only here, in the same way for uint8 and floats.

    Args:
        config: Options.
        load_pretrained: Whether to load the pretrained encoder of the config; False if all weights
            are loaded from a checkpoint afterwards.
    """

    def __init__(self, config: ClassifierConfig, *, load_pretrained: bool = True) -> None:
        super().__init__()
        self.config = config
        channels, height, width = config.image_size
        scale, shift = _normalisation(channels) if config.normalize else _identity(channels)
        self.scale = nn.Buffer(scale, persistent=False)
        self.shift = nn.Buffer(shift, persistent=False)
        self.encoders = nn.ModuleList(resnet10(channels, config.width) for _ in config.image_keys)
        with torch.no_grad():
            features = self.encoders[0](torch.zeros(1, channels, height, width))
        self.poolings = nn.ModuleList(
            _Pooling(features.shape[1:], config) for _ in config.image_keys
        )
        n_features = config.hidden_dim * len(config.image_keys)
        self.head = nn.Sequential(
            nn.Linear(n_features, config.hidden_dim),
            nn.Dropout(config.dropout),
            nn.LayerNorm(config.hidden_dim),
            nn.ReLU(),
            nn.Linear(config.hidden_dim, 1),
        )
        if load_pretrained and config.pretrained is not None:
            self.load_encoder(config.pretrained)
        self.encoders.requires_grad_(not config.freeze_encoder)

    def forward(
        self, images: Mapping[str, Tensor], generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the logit of success [B].

        Args:
            images: Images of each camera, [B, C, H, W] or [B, H, W, C], uint8 or floats in [0, 1].
            generator: If given, augments images of uint8; see `augment`.
        """
        return self.decide(self.encode(images, generator))

    def encode(
        self, images: Mapping[str, Tensor], generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return the feature map [B, channels, height, width] of each camera; see `forward`."""
        encoders = zip(self.config.image_keys, self.encoders, strict=True)
        return {key: encoder(self.normalised(key, images, generator)) for key, encoder in encoders}

    def decide(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the logit of success [B] from the output of `encode`."""
        poolings = zip(self.config.image_keys, self.poolings, strict=True)
        pooled = torch.cat([pooling(features[key]) for key, pooling in poolings], -1)
        logits: Tensor = self.head(pooled)
        return logits.squeeze(-1)

    def normalised(
        self, key: str, images: Mapping[str, Tensor], generator: torch.Generator | None = None
    ) -> Tensor:
        """Return normalised pixels of a camera, in channels-last memory format.

        Args:
            key: The camera.
            images: See `forward`.
            generator: See `forward`.
        """
        if key not in images:
            raise ValueError(
                f"the classifier needs images of {', '.join(self.config.image_keys)}, but got only "
                f"{', '.join(images)}"
            )
        pixels = images[key]
        channels, height, width = self.config.image_size
        if pixels.shape[1:] == (height, width, channels):
            pixels = pixels.permute(0, 3, 1, 2)
        if pixels.shape[1:] != (channels, height, width):
            raise ValueError(
                f"images of {key!r} have shape {list(pixels.shape[1:])}, but the classifier takes "
                f"{self.config.image_size}, channels first or last"
            )
        if pixels.dtype is torch.uint8 and generator is not None:
            values = augment(pixels, generator).to(self.scale.dtype)
        elif pixels.dtype is torch.uint8:
            values = pixels.to(self.scale.dtype).div_(255)
        else:
            _check_range(key, pixels)
            values = pixels.to(self.scale.dtype)
        values = values.contiguous(memory_format=torch.channels_last)
        return torch.addcmul(self.shift, values, self.scale)

    def begin_at(self, logit: float) -> None:
        """Set the logit of an untrained classifier, by the bias of the last layer."""
        nn.init.constant_(self.head[-1].bias, logit)  # type: ignore[arg-type]

    def load_encoder(self, path: str | Path) -> None:
        """Load the encoder of every camera; nothing changes if one does not match.

        Args:
            path: A safetensors file, as `export_encoder` writes it.
        """
        weights = _read_weights(Path(path))
        try:
            copy.deepcopy(self.encoders[0]).load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(
                f"the encoder in {path} (reward.model.pretrained_encoder_path) does not match; "
                f"reward.model.width or reward.model.image_size may differ: {error}"
            ) from error
        for encoder in self.encoders:
            encoder.load_state_dict(weights)

    def export_encoder(self, path: str | Path, camera: str | None = None) -> None:
        """Write the weights of an encoder to a file for ``pretrained_encoder_path``.

        Args:
            path: Safetensors file to write.
            camera: Camera of the encoder; the first one by default.
        """
        keys = self.config.image_keys
        if camera is not None and camera not in keys:
            raise ValueError(f"there is no camera {camera!r}: choose from {', '.join(keys)}")
        encoder = self.encoders[0 if camera is None else keys.index(camera)]
        weights = {name: value.contiguous() for name, value in encoder.state_dict().items()}
        save_file(weights, path)


class _Pooling(nn.Module):
    """Learned spatial embeddings (https://arxiv.org/abs/2401.16013), then a bottleneck."""

    def __init__(self, shape: torch.Size, config: ClassifierConfig) -> None:
        super().__init__()
        channels, height, width = shape
        blocks = config.num_spatial_blocks
        # LeCun initialisation: the sum over height x width keeps its variance.
        kernel = torch.randn(channels, height, width, blocks) / (height * width) ** 0.5
        self.kernel = nn.Parameter(kernel)
        self.bottleneck = nn.Sequential(
            nn.Dropout(config.dropout),
            nn.Linear(channels * blocks, config.hidden_dim),
            nn.LayerNorm(config.hidden_dim),
            nn.Tanh(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map [B, channels, height, width] to [B, hidden_dim]."""
        summed = torch.einsum("bchw,chwk->bck", features, self.kernel)
        pooled: Tensor = self.bottleneck(summed.flatten(1))
        return pooled


def build_members(saved: Mapping[str, Any]) -> list[BinaryRewardClassifier]:
    """Make the classifiers of a checkpoint, on the CPU in evaluation mode.

    Args:
        saved: Weights (``members``) and ``meta`` with the options of the ``model``.
    """
    config, members = ClassifierConfig(**saved["meta"]["model"]), []
    for weights in saved["members"]:
        member = BinaryRewardClassifier(config, load_pretrained=False)
        check_like(weights, member.state_dict(), "the classifier")
        member.load_state_dict(weights)
        members.append(member.eval())
    return members


def _normalisation(channels: int) -> tuple[Tensor, Tensor]:
    """Return factor and summand [C, 1, 1]; repeated for stacked colour images, else their mean."""
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    if channels % 3 == 0:
        mean, std = mean.repeat(channels // 3), std.repeat(channels // 3)
    else:
        mean, std = mean.mean().expand(channels), std.mean().expand(channels)
    return (1 / std).view(-1, 1, 1), (-mean / std).view(-1, 1, 1)


def _identity(channels: int) -> tuple[Tensor, Tensor]:
    return torch.ones(channels, 1, 1), torch.zeros(channels, 1, 1)


def _check_range(key: str, pixels: Tensor) -> None:
    if not pixels.is_floating_point():
        raise TypeError(f"images of {key!r} are {pixels.dtype}: give uint8, or floats in [0, 1]")
    if pixels.numel() and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError(
            f"images of {key!r} have values from {float(pixels.min()):.3g} to "
            f"{float(pixels.max()):.3g}: give uint8, or floats in [0, 1]"
        )


def _read_weights(path: Path) -> dict[str, Tensor]:
    where = f"reward.model.pretrained_encoder_path is {path}, which"
    if not path.is_file():
        raise FileNotFoundError(f"{where} is {'a folder' if path.is_dir() else 'missing'}")
    if path.suffix != ".safetensors":
        raise ValueError(
            f"{where} is not a safetensors file (other formats can run code): convert it "
            "once, if you trust it, with safetensors.torch.save_file(torch.load(OLD, "
            "weights_only=True), NEW)"
        )
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{where} is damaged: {error}") from error
