"""jobmaster: the whole life of training jobs.

Owns specs, run records, status and history of jobs (JetStream KV), and the processes of their roles.
Answers `recmesh.jobmaster.v1.Jobs` (users, through gateway) and `Runs` (a job's own roles).
Takes in the commands `job.submit`, `job.suspend` and `job.resume`; tells `job.*` facts.

Every job has one *runner*: it looks (processes, heartbeats, progress), asks the pure rules of `domain` what
to do, and does it. Long procedures (a generation, a snapshot, the end) are explicit steps in `app`. The only
point of agreement is the run record, changed by compare-and-set; everything else may be lost or late.
"""
