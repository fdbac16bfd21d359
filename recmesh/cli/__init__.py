"""The `recmesh` command: the mesh on one machine (`up`, `down`, ...), jobs, models and data."""
