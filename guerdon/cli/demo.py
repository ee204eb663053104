"""``guerdon demo``: the data layer at work on a real environment."""


def demo() -> None:
    """Steps CartPole with random actions into a buffer and prints a sampled batch."""
