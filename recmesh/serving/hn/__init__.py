"""HN: a process that runs dense halves (and whole models) for CNs and for the gateway: `python -m recmesh.serving.hn`.

    server     connections, operations, loading
    model      one loaded model: its queue, its thread, its batches
    parts      what is run of a model's folder
    followed   the half of a model that follows its job: constants of a few versions
    desk       admission: whether a CN may send now
    holders    who wants which model, where CNs may have them loaded (pure)
    batching   which requests are run next, and together (pure)
"""
