"""Figures of recmesh, each measured on the product's real path: `python -m bench NAME [--quick] [--json]`."""
