"""shardsvc: datasets, data tasks and shard leases.

Owns  the registry of datasets (JetStream KV), the task log of every job (JetStream), its run (JetStream KV),
      and the queue of leases (Valkey, by atomic scripts; may be lost whole without harm).
RPCs  Inspect, RegisterDataset, GetDataset, ListDatasets, RemoveDataset; OpenRun, CloseRun, Lease, Renew,
      ReleaseWorker, Reconcile, Progress.
Out   run.opened, lease.requeued, dataset.registered, dataset.removed.
In    nothing.

Positions are immutable and their log is durable before the first lease. Everything else here is a hint:
which positions are done is decided by ledgers, which the jobmaster brings with every snapshot.
"""
