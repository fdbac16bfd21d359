"""The worker: leases shards, reads batches, pulls, lets the model compute, pushes.

`role` runs the process, `session` is what the model sees, `life` is one generation of it (all threads and
state that a rollback throws away), `push` carries one batch to every server, `leases` and `cutting` are the
pure rules of progress and of what is still missing, `meter` measures.
"""
