"""HTTP face of gateway: the REST API, the Open Inference Protocol, live events, the ops page."""
