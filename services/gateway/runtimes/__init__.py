"""Model runtimes: models run in processes of `recmesh.serving`, started when the first model that needs them is loaded.

The gateway's process imports no framework. `process` is the parent's side of one child; `pool` keeps one child
for each framework in use, which runs models whole, and `split` a CN and an HN for each framework with models
in halves. They talk over a socket pair: the child ends when the gateway does, whatever ended it, and no other
process can connect.
"""
