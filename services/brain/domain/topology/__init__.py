"""Prism's algorithm 1 (`domain/placement.py`) over a cluster that changes while a scheduler asks.

model.py      nodes, pods and rules in the algorithm's terms
objects.py    Kubernetes' objects in these terms
fleet.py      what is where, and what is about to be
choosing.py   which nodes an instance may have, and which are best
"""
