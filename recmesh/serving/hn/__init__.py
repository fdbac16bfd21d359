"""HN: a process that runs dense halves (and whole models) for CNs and for the gateway: `python -m recmesh.serving.hn`.

    server     connections, operations, loading
    model      one loaded model: its queue, its thread, its batches
    desk       admission: whether a CN may send now
    batching   which requests are run next, and together (pure)
"""
