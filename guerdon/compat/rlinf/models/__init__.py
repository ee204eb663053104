"""Models of RLinf."""
