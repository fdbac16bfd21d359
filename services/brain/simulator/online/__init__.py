"""One online job under a planner of streams, minute by minute, over a real series of arrivals.

`recmesh simulate --online SERIES`. The planners are those of `services.brain.domain.streams`; each is asked anew at
every planning step, with the forecast of that time and what the job has shown by then. All but `series` and `command`
is pure.
"""
