"""The command ``guerdon``, and ``python -m guerdon``."""

from guerdon import startup


def main() -> None:
    """Run the command; Ctrl-C is handled before anything else is imported."""
    startup.install()
    from guerdon.cli import main

    main()


if __name__ == "__main__":
    main()
