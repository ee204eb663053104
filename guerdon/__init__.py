"""guerdon: reinforcement learning for people whose reward has to be learned."""

__version__ = "0.1.0"
