"""The mesh on one machine: real servers and the six services as processes under a small supervisor.

`recmesh up` prepares the data folder, starts the supervisor and waits; the supervisor starts the components,
adopts those that still live, restarts what dies; `recmesh down` stops everything. All of them meet in the
data folder only: any of them may be killed at any time, and the next one finds out from there what is true.

    mesh.json       addresses (kept over restarts), pids and states; written by `up` and the supervisor
    config.toml     the user's settings
    secrets.json    generated tokens (owner only)
    run/            records of processes, the lock, exits.jsonl
    logs/ nats/ valkey/ db/ storage/
"""
