"""Reward models of RLinf."""
