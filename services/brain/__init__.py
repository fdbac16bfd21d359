"""brain: what resources each job should have.

Owns: the config DB (history of jobs, profiles, plans), in SQLite or PostgreSQL.
Answers (gRPC): recmesh.brain.v1.Brain. HTTP, where its address is set: the extender API of kube-scheduler.
Events out: plan.proposed. Events in: none; profiles and histories come by RPC from jobmaster.
"""
