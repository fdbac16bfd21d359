"""Chaos: a job is trained while the processes around it are killed, and its result is compared with the truth.

Rooms, imports go down: `run` (the whole) → `harness` (what is killed when) → `victims`, `pace` | `verify` (snapshots
against the data) → `truth` → `dataset`, `tasklog` | `schedule` (pure, seeded) | `counting` (the model, in the workers).
docs/reference/chaos.md says what a run shows.
"""
