"""A cluster in numbers: the planners of brain, driven over traces of jobs, on a clock of its own.

`python -m services.brain.simulator` (`recmesh simulate`) reads a trace (which jobs came when, how large, for how long)
and a truth (how fast a model trains at which size), replays the trace once for each planner, and compares them. The
planners are those of the service, behind `recmesh.plugins.planning`: what they see here is what a running job would
have shown them. All but `traces`, `tables`, `command` and `__main__` is pure: one seed, one answer.
"""
