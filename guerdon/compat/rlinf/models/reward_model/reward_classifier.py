"""RLinf's classifier of success, with its arguments."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from guerdon.compat.rlinf.config import model_options
from guerdon.nn import classifier
from guerdon.nn.classifier import ClassifierConfig


class BinaryRewardClassifier(classifier.BinaryRewardClassifier):
    """`guerdon.nn.classifier.BinaryRewardClassifier` with RLinf's arguments and shapes.

    Others are ``pretrained_encoder_path`` (``.pt`` or safetensors), ``use_pretrain`` and
    ``freeze_encoder``, which has no effect without a file.
    """

    def __init__(
        self,
        image_keys: Sequence[str],
        image_size: Sequence[int],
        hidden_dim: int = 256,
        num_spatial_blocks: int = 8,
        **encoder: Any,
    ) -> None:
        sizes = {"hidden_dim": hidden_dim, "num_spatial_blocks": num_spatial_blocks}
        given = {"use_pretrain": True, "freeze_encoder": True, **encoder, **sizes}
        lists = {"image_keys": list(image_keys), "image_size": list(image_size)}
        super().__init__(ClassifierConfig(**model_options({**given, **lists})))

    def forward(  # type: ignore[override]
        self,
        images: Mapping[str, Tensor] | Tensor,
        train: bool = False,  # noqa: ARG002 - the mode of the module
    ) -> Tensor:
        """Return logits [B, 1] of images [B, C, H, W], by camera if there are several."""
        if isinstance(images, Tensor):
            images = {self.config.image_keys[0]: images}
        batches = {key: part if part.ndim == 4 else part[None] for key, part in images.items()}
        return super().forward(batches)[:, None]


class ResNetEncoderWrapper(nn.Module):
    """A ResNet-10 with spatial embeddings: the features that the classifier sees of a camera.

    `sample_x` are images [B, C, H, W], for their size; options are those of the classifier.
    """

    def __init__(self, sample_x: Tensor, out_dim: int = 256, **options: Any) -> None:
        super().__init__()
        self.out_dim = out_dim
        with torch.no_grad():
            made = BinaryRewardClassifier(["camera"], sample_x.shape[1:], out_dim, **options)
        made.head = nn.Identity()  # type: ignore[assignment]
        self.network = made

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, out_dim] of images [B, C, H, W]."""
        features: Tensor = self.network.poolings[0](self.network.encode({"camera": x})["camera"])
        return features
