"""nerveX's environment managers."""
