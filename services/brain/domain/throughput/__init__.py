"""How fast a job would be with other resources: profiles in, models out.

`observations` draws measured configurations from profiles; `learn` makes a `Learned` of them (a
`recmesh.plugins.planning.Throughput`), or says in an `Unknown` why it cannot.
"""
