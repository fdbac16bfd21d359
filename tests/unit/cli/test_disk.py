"""A disk that fills and empties while the mesh runs."""

from recmesh.cli.mesh.disk import BETWEEN_RESTARTS_S, DiskWatch


def test_nats_starts_again_once_when_there_is_room_again() -> None:
    watch = DiskWatch()
    assert not watch.saw("", 0.0)
    assert not watch.saw("full", 1.0) and watch.full == "full"
    assert watch.saw("", 2.0) and watch.full == ""
    assert not watch.saw("", 3.0)


def test_a_disk_at_the_edge_does_not_restart_nats_all_the_time() -> None:
    watch = DiskWatch()
    watch.saw("full", 0.0)
    assert watch.saw("", 1.0)
    watch.saw("full", 2.0)
    assert not watch.saw("", 3.0)
    assert watch.saw("", 1.0 + BETWEEN_RESTARTS_S)
