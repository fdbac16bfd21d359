"""Planners of training jobs: pure, as `recmesh.plugins.planning` asks, and found by name.

A plan is made in two halves. For each job: what its limits allow (`grid`), what that brings and costs (`survey`), what
of it is believed (`trust`) and worth a change (`wishes`), and the front of that (`candidates`, `search`). For all jobs:
what each gets (`selection`, `knapsack`, `room`).
"""
