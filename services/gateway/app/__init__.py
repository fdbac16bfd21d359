"""Use cases of gateway: load, decide, save, tell."""
