"""Networks."""

from guerdon.nn.config import ModelConfig
from guerdon.nn.convolution import ImageEncoder, make_image_encoder
from guerdon.nn.critics import EnsembleMLP, QCritic
from guerdon.nn.encoders import MLP, make_encoder
from guerdon.nn.heads import ContinuousHead, DeterministicHead, DiscreteHead, DuelingHead
from guerdon.nn.init import linear, orthogonal_, seeded
from guerdon.nn.models import Actor, ActorCritic, DeterministicActor, GaussianActor, Model, QNetwork
from guerdon.nn.normalizer import CompositeNormalizer, ObservationNormalizer, make_normalizer
from guerdon.nn.registry import MODELS, create_model, register_model

__all__ = [
    "MLP",
    "MODELS",
    "Actor",
    "ActorCritic",
    "CompositeNormalizer",
    "ContinuousHead",
    "DeterministicActor",
    "DeterministicHead",
    "DiscreteHead",
    "DuelingHead",
    "EnsembleMLP",
    "GaussianActor",
    "ImageEncoder",
    "Model",
    "ModelConfig",
    "ObservationNormalizer",
    "QCritic",
    "QNetwork",
    "create_model",
    "linear",
    "make_encoder",
    "make_image_encoder",
    "make_normalizer",
    "orthogonal_",
    "register_model",
    "seeded",
]
