"""Model runtimes: each framework in a process of its own, started when the first model of it is loaded.

The gateway's process imports neither framework. `server` is the child's program; `process` is the parent's
side of one child; `pool` keeps one child for each framework in use. They talk over a socket pair: the child
ends when the gateway does, whatever ended it, and no other process can connect.
"""
