"""Sizes of roles that a job's own measurements ask for: how many data executors, how large each role, memory ahead."""
