"""What others can add to recmesh: interfaces, and how an installed package is found (entry points)."""
