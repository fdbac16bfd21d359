"""The data executor: reads, filters and transforms tasks for workers, and hands out their rows by position.

It owns nothing: what it holds can be made again from a task record, so its loss costs time only, and which positions
are trained is decided by leases and ledgers as without it (docs/adr/0014-data-executors.md). `role` runs the process,
`serving` its threads, `rpc` its wire; `shelf` is what it holds, `priority` which source is read next, `rebalance` what
is passed to whom: these three are pure.
"""
