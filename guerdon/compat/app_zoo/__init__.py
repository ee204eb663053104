"""Environments and configs of nerveX's ``app_zoo``."""
