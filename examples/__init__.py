"""Jobs and scripts to start from."""
