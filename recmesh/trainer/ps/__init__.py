"""The parameter server: rows and dense chunks of the slots it owns, each batch applied exactly once.

`ledger` holds the rules, `model` the declared tables over `recmesh.store`, `server` both under one latch,
`rpc` the wire, `role` the process. docs/adr/0002-exactly-once.md argues why the rules are enough.
"""
