"""Golden vectors: these numbers are in saved models and on the wire, so they never change."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.formats import (
    MISSING_ID,
    SlotMap,
    chunk_count,
    fnv1a64,
    hash_strings,
    initial_rows,
    mix,
    permutation,
    slots_of,
    splitmix64,
    strings,
    table_salt,
)
from recmesh.formats.hashing import hash_strings_slowly
from recmesh.formats.slotmap import from_bitmap, from_runs, to_bitmap, to_runs

IDS = np.array([0, 1, -1, 42, 2**62, -(2**63)], np.int64)


def test_splitmix64_gives_its_published_outputs() -> None:
    # Vigna's splitmix64.c, seed 1234567: its first three outputs.
    states = (1234567 + np.arange(3, dtype=object) * 0x9E3779B97F4A7C15) % 2**64
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert splitmix64(states.astype(np.uint64)).tolist() == expected
    assert mix(0) == 0xE220A8397B1DCDAF


def test_fnv1a64_gives_its_published_outputs() -> None:
    assert [fnv1a64(text) for text in ("", "a", "foobar")] == [
        0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8]


def test_slots_have_their_golden_values() -> None:
    assert table_salt("item") == 0xC4B80C389898D924
    assert slots_of(IDS, "item").tolist() == [1628, 1131, 2053, 1074, 1512, 2266]
    assert slots_of(IDS, "user").tolist() == [4020, 2678, 169, 454, 219, 1529]


def test_a_slot_is_the_top_12_bits_of_the_salted_hash() -> None:
    for id_ in IDS.tolist():
        key = (id_ % 2**64) ^ mix(fnv1a64("item"))
        assert slots_of(np.array([id_]), "item")[0] == mix(key) >> 52


def test_string_ids_have_their_golden_values() -> None:
    assert hash_strings(["ORD", None, ""]).tolist() == [1684358236094499634, MISSING_ID, MISSING_ID]
    assert MISSING_ID == -4359066618775142608


@given(st.lists(st.none() | st.text(max_size=12), max_size=20), st.integers(0, 5))
def test_every_arrow_form_of_a_column_hashes_alike(values: list[str | None], cut: int) -> None:
    expected = hash_strings_slowly(values).tolist()
    column = pa.array(values, pa.string())
    assert hash_strings(values).tolist() == expected
    assert hash_strings(column).tolist() == expected
    assert hash_strings(column.cast(pa.large_string())).tolist() == expected
    assert hash_strings(column.cast(pa.binary())).tolist() == expected
    assert hash_strings(column.dictionary_encode()).tolist() == expected
    assert hash_strings(pa.chunked_array([column[:cut], column[cut:]])).tolist() == expected


@pytest.mark.parametrize("left", [-1, 1 << 16])
def test_few_and_many_strings_hash_alike(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    monkeypatch.setattr(strings._fnv1a64, "_left", left)
    values = ["", "ORD", "Zürich", None, "x" * 300]
    expected = hash_strings_slowly(values).tolist()
    assert hash_strings(values).tolist() == expected
    assert hash_strings(pa.array(["gone", *values])[1:]).tolist() == expected


def test_the_permutation_has_its_golden_values() -> None:
    assert permutation(0, 10).tolist() == [5, 7, 8, 2, 9, 0, 3, 1, 6, 4]
    assert permutation(7, 10).tolist() == [9, 5, 4, 2, 3, 1, 0, 8, 7, 6]


@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_a_permutation_holds_each_number_once(seed: int, n: int) -> None:
    assert sorted(permutation(seed, n).tolist()) == list(range(n))


def test_initial_values_have_their_golden_bits() -> None:
    def bits(kind: str) -> list[list[int]]:
        rows = initial_rows(3, table="item", ids=IDS[:3], dim=3, kind=kind, scale=0.05)
        return rows.view(np.uint32).tolist()  # type: ignore[no-any-return]  # numpy's tolist is untyped

    assert bits("uniform") == [[1009640751, 3170799921, 3175141796], [992308824, 3172770648, 3174961178],
                               [1027375990, 3172316755, 1008999100]]
    assert bits("normal") == [[1012700423, 3174325327, 3183590296], [995064257, 3178438968, 3182969263],
                              [1035177418, 3177341734, 1011868250]]


def test_initial_values_have_the_spread_they_are_named_after() -> None:
    ids = np.arange(100_000)
    uniform = initial_rows(1, table="t", ids=ids, dim=4, kind="uniform", scale=0.5).astype(np.float64)
    normal = initial_rows(1, table="t", ids=ids, dim=4, kind="normal", scale=2.0).astype(np.float64)
    assert abs(uniform).max() <= 0.5 and abs(uniform.std() - 0.5 / 3**0.5) < 1e-3
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 2.0) < 0.01
    assert abs((normal**4).mean() / 16 - 3.0) < 0.05
    with pytest.raises(ValueError, match="one of zeros"):
        initial_rows(1, table="t", ids=ids, dim=4, kind="glorot", scale=1.0)


def test_the_normal_quantile_agrees_with_the_standard_library() -> None:
    from statistics import NormalDist

    from recmesh.formats.initial import _normal_quantile

    p = np.array([2.0**-54, 1e-9, 0.01, 0.02425, 0.3, 0.5, 0.9, 0.99, 1 - 1e-9])
    expected = np.array([NormalDist().inv_cdf(x) for x in p.tolist()])
    np.testing.assert_allclose(_normal_quantile(p), expected, rtol=2e-9, atol=1e-12)


def test_an_even_map_gives_runs_and_survives_the_wire() -> None:
    slot_map = SlotMap.even(5, 3)
    assert slot_map.n_ps == 3 and np.bincount(slot_map.owners).tolist() == [1366, 1365, 1365]
    assert (slot_map.owners == np.arange(4096) * 3 // 4096).all()
    assert SlotMap.from_bytes(5, slot_map.to_bytes()) == slot_map != SlotMap.even(6, 3)
    assert to_runs(slot_map.mask(1)) == [(1366, 2731)]


@given(st.sets(st.integers(0, 4095)))
def test_bitmaps_and_runs_of_slots_round_trip(slots: set[int]) -> None:
    mask = np.zeros(4096, np.bool_)
    mask[list(slots)] = True
    bitmap = to_bitmap(mask)
    assert all(bool(bitmap[s // 8] >> s % 8 & 1) == (s in slots) for s in (0, 7, 8, 4095, *slots))
    assert (from_bitmap(bitmap) == mask).all() and (from_runs(to_runs(mask)) == mask).all()


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="4096 owners"):
        SlotMap(1, np.zeros(5, np.uint16))
    with pytest.raises(ValueError, match="512 bytes"):
        from_bitmap(b"\0")
    with pytest.raises(ValueError, match="no run of slots"):
        from_runs([(5, 5)])
    with pytest.raises(ValueError, match="parameter servers"):
        SlotMap.even(1, 0)


@pytest.mark.parametrize(("size", "chunks"), [(0, 0), (1, 1), (16_384, 1), (16_385, 2)])
def test_a_dense_block_has_whole_chunks_and_a_shorter_last_one(size: int, chunks: int) -> None:
    assert chunk_count(size) == chunks
