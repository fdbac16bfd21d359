"""The mesh's kinds of Kubernetes objects, made of the specifications that CLI, REST and events have.

`kinds` says which there are, `schema` turns a specification into a structural schema, `rules` repeats its rules in CEL
with the same messages, `definitions` puts these together, and `objects` turns jobs into objects and back.

    python -m recmesh.crd.definitions infra/base/crds
"""
