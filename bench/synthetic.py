"""Criteo-like data: 13 dense and 26 categorical columns whose ids follow a bounded zipf law."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

TABLES, DENSE = 26, 13
ZIPF = 1.05
IDS_PER_TABLE = 1_000_000

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Criteo:
    """ids [rows, 26] in [0, 1e6), dense [rows, 13], label [rows] drawn from a hidden linear model."""

    ids: I64
    dense: F32
    label: F32


def zipf_ids(rng: np.random.Generator, shape: tuple[int, ...], *, ids: int, exponent: float = ZIPF) -> I64:
    """Ids by inverse CDF of P(k) ∝ (k+1)^-exponent; id 0 is the most frequent."""
    cdf = np.cumsum(np.arange(1, ids + 1, dtype=np.float64) ** -exponent)
    drawn: I64 = np.searchsorted(cdf, rng.random(shape) * cdf[-1]).astype(np.int64)
    return drawn


def criteo_like(rows: int, *, seed: int, ids: int = IDS_PER_TABLE) -> Criteo:
    """Rows with something to learn: each id and each dense column shifts the log-odds."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(20_26)
    weights = truth.normal(0, 0.5, size=(TABLES, ids)).astype(np.float32)
    dense_weights = truth.normal(0, 0.2, size=DENSE).astype(np.float32)
    drawn = zipf_ids(rng, (rows, TABLES), ids=ids)
    dense = rng.normal(size=(rows, DENSE)).astype(np.float32)
    logit = weights[np.arange(TABLES), drawn].sum(1) / np.sqrt(TABLES) * 2 + dense @ dense_weights - 1.2
    label = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return Criteo(drawn, dense, label)


def write_tsv(path: Path, data: Criteo) -> None:
    """The same columns as tab-separated text without a header."""
    columns: dict[str, pa.Array] = {"label": pa.array(data.label.astype(np.int8))}
    columns |= {f"I{k + 1}": pa.array(np.ascontiguousarray(data.dense[:, k])) for k in range(DENSE)}
    columns |= {f"C{k + 1}": pa.array(data.ids[:, k]) for k in range(TABLES)}
    csv.write_csv(pa.table(columns), path, csv.WriteOptions(include_header=False, delimiter="\t"))


def write_parquet(path: Path, data: Criteo, *, row_group: int = 65_536) -> None:
    """Columns label, I1..I13 and C1..C26, as `bench.mesh.criteo_data` names them. Plain: random ids repeat little."""
    columns: dict[str, pa.Array] = {"label": pa.array(data.label.astype(np.int8))}
    columns |= {f"I{k + 1}": pa.array(np.ascontiguousarray(data.dense[:, k])) for k in range(DENSE)}
    columns |= {f"C{k + 1}": pa.array(data.ids[:, k]) for k in range(TABLES)}
    pq.write_table(pa.table(columns), path, row_group_size=row_group, compression="NONE", use_dictionary=False)


def write_records(path: Path, data: Criteo, *, batch: int) -> None:
    """Each batch as one record: its ids int64 [batch, 26], dense float32 [batch, 13], labels float32 [batch]."""
    with path.open("wb") as file:
        for lo in range(0, len(data.label), batch):
            some = slice(lo, lo + batch)
            for array in (data.ids[some], data.dense[some], data.label[some]):
                file.write(np.ascontiguousarray(array).tobytes())


def read_records(path: Path, *, batch: int) -> Iterator[Criteo]:
    """What `write_records` wrote."""
    ids_end, dense_end = batch * TABLES * 8, batch * (TABLES * 8 + DENSE * 4)
    with path.open("rb") as file:
        while record := file.read(record_bytes(batch)):
            yield Criteo(
                np.frombuffer(record[:ids_end], np.int64).reshape(batch, TABLES),
                np.frombuffer(record[ids_end:dense_end], np.float32).reshape(batch, DENSE),
                np.frombuffer(record[dense_end:], np.float32),
            )


def record_bytes(batch: int) -> int:
    """Of one batch."""
    return batch * (TABLES * 8 + DENSE * 4 + 4)
