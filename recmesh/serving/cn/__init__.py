"""CN: a process that runs sparse halves and asks HNs for the dense ones: `python -m recmesh.serving.cn`.

    server      connections, operations; pre and post
    model       the stages of one model that run here
    loaded      a model with its HNs
    following   models that follow their job: a version serves once HNs hold its constants
    dispatch    a request's way to an HN and back: choice, asking, sending, another one, hedging, cancelling
    fleet       the HNs of one model: which is asked, which left alone, when a second one
    asking      admission by the HN
    peers       connections to HNs: calls, answers, reconnecting
    halves      dense halves in HNs that load what they are told to
    flights     a request's state
    alarms      deadlines and hedges
    status      what is told to people
"""
