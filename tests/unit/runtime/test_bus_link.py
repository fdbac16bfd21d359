"""Addresses of NATS."""

import pytest

from recmesh.runtime.bus.link import Link
from recmesh.runtime.errors import InvalidArgument


def test_several_servers_and_no_password_in_the_address() -> None:
    link = Link("nats://t0ken@a.example, tls://u:p4ss@b.example:4333", name="test")
    assert link.address == "a.example:4222, b.example:4333"


@pytest.mark.parametrize("url", ["http://u:p4ss@h:1", "nats://u:p4ss@h:p0rt", "nats://u:p4ss/h", "nats://a:1,u:p4ss@b"])
def test_a_wrong_url_is_refused_without_telling_its_password(url: str) -> None:
    with pytest.raises(InvalidArgument, match="nats_url") as caught:
        Link(url, name="test")
    assert "p4ss" not in str(caught.value) and not any("p4ss" in item.reason for item in caught.value.violations)
