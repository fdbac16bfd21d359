"""A batch's rows from the servers that own them, straight into the batch's arrays."""

from collections.abc import Mapping

from recmesh.trainer.layout import Placement, Prepared
from recmesh.trainer.ports import Declared, ParameterServer, Pulled
from recmesh.trainer.session import Floats


def pull_from(
    ps: int,
    server: ParameterServer,
    prepared: Prepared,
    declared: Declared,
    placement: Placement,
    *,
    absent_as_zero: bool = False,
) -> Pulled:
    """One server's share: its ids of each table that has some, and its dense chunks."""
    k = placement.servers.index(ps)
    wanted = []
    for number in range(len(declared.tables)):
        bound = prepared.bounds[number]
        if bound[k + 1] > bound[k]:
            wanted.append((number, prepared.unique[number][bound[k]:bound[k + 1]]))
    return server.pull(
        placement.gen, map_version=placement.version, tables=wanted, dense=True, absent_as_zero=absent_as_zero
    )


def fill(k: int, pulled: Pulled, prepared: Prepared, declared: Declared, rows: Mapping[str, Floats]) -> None:
    """Writes the share of the k-th server into the rows by table."""
    answers = iter(pulled.rows)
    for number, table in enumerate(declared.tables):
        lo, hi = prepared.bounds[number][k], prepared.bounds[number][k + 1]
        if hi > lo:
            rows[table.name][lo:hi] = next(answers).reshape(hi - lo, table.dim)
