"""Use cases of jobmaster.

    submit      a specification becomes a job, or is refused with every wrong field
    jobs        what users ask of jobs; the registry of runners
    roles       what a job's own processes say and ask
    runner      looks, decides (domain.rules), acts; one per job
    generation  R1 to R5: start and rollback
    snapshots   S1 to S4, and quarantine
    ending      from the closing snapshot to success; failure; deletion
    queue       progress of shardsvc's queue, releases of dead workers
    tuning      better plans while a job trains: asked for, carried out, measured, kept or taken back
    telling     events, their history, profiles for brain
    sharing     which of several jobmasters runs which jobs; `fence` keeps out whoever has not heard of it yet
"""
