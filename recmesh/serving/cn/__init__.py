"""CN: a process that runs sparse halves and asks HNs for the dense ones: `python -m recmesh.serving.cn`.

    server      connections, operations; a request's way through pre, HN and post
    model       the stages of one model that run here
    peers       connections to HNs: calls, answers, reconnecting
    choice      which HN is asked (a seam)
    admission   whether a request may be sent now (a seam)
    asking      admission by the HN
"""
