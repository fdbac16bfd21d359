"""ckptcache: snapshots of training state, in memory and on storage.

Owns: the shared-memory files that it has taken over, and `<storage>/checkpoints/`.
Answers (gRPC): recmesh.ckptcache.v1.Checkpoints.
Events out: snapshot.stored (all parts are verified and on storage), snapshot.damaged. Events in: none.
State: the snapshots' own files are the truth; the catalogue in JetStream KV is an index that is
rebuilt from them at start; memory copies are a cache.

A snapshot is COLLECTING from Begin on, STORED when every expected part is verified and synced to
storage, COMMITTED by jobmaster's word, which follows its compare-and-set of the job record
(PROTOCOL §5). What is not committed does not exist, with one exception: a STORED snapshot outlives a
restart, because the job record may already name it while Commit is on its way.
"""
