"""Reward workers of RLinf."""
