"""Models whose tables lie beside their program, and that follow an online job: docs/reference/freshness.md.

    follower   watches the job's committed snapshots, and makes of each a `Version`: rows and dense blocks together
    source     the snapshots' files: what changed since a version, or all of it
    version    the state that a request is answered by, never changed once it is made
    lookup     rows of ids through the tiers: fresh rows, cache, Valkey, the mapped snapshot, the miss policy
    cache      a bounded cache with admission by frequency (`sketch`)
    sparse     all of it: raw ids in, a program's inputs out
    program    with the program, as a `Program`: raw ids in, predictions out
    asking     what may be asked of it over a connection
"""
