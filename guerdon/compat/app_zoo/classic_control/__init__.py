"""Environments and configs under the names of nerveX's app_zoo."""
