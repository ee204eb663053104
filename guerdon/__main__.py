"""``python -m guerdon`` is the same as the command ``guerdon``."""

from guerdon.cli import main

if __name__ == "__main__":
    main()
