"""Workers of RLinf."""
