"""An HN's settings of admission, as they are given on its command line."""

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.admission.settings import Settings


def test_every_setting_can_be_given_by_name_and_models_have_shares() -> None:
    given = ["bandwidth_bytes_per_s=3e9", "window_start_bytes=2097152", "shares.ads=2.5", "shares.feed=1"]
    parsed = Settings.parse(given)
    assert (parsed.bandwidth_bytes_per_s, parsed.window_start_bytes) == (3e9, 2 << 20)
    assert dict(parsed.shares) == {"ads": 2.5, "feed": 1.0} and parsed.margin_s == Settings().margin_s


def test_each_wrong_one_is_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        Settings.parse(["windows=1", "waiting_most=1.5", "margin_s", "shares.ads=much", "shares.=1"])
    assert [item.path for item in caught.value.violations] == [
        "windows", "waiting_most", "margin_s", "shares.ads", "shares.",
    ]
    with pytest.raises(InvalidArgument) as caught:
        Settings.parse(["window_start_bytes=1"])
    assert [item.path for item in caught.value.violations] == ["window_start_bytes"]
