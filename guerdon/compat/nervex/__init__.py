"""nerveX's modules under their names: ``nervex`` is ``guerdon.compat.nervex``."""
