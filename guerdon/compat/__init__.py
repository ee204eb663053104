"""Interfaces of other systems on top of guerdon; the core does not import them."""
