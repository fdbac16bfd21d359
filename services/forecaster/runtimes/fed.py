"""A frequency-enhanced decomposed transformer, after FEDformer (Zhou et al. 2022), in torch.

Published for univariate series: input 96, label 48, output 96, 64 modes, width 512, 8 heads, 2 encoder and 1 decoder
layers, feed-forward 2048, moving average 24, dropout .05. Two weeks of minutes within a minute of one CPU core leave
room for a width of 32, 4 heads, 64 in the feed-forward and 16 modes; lengths, layers and the moving average are as
published. Two things differ in kind: windows are normalised by their own mean and deviation (Kim et al. 2022), as
traffic grows; and the decoder starts from what the last season had at the place to be filled, where the original
starts from zeros, as a window of 96 minutes cannot hold a day.
"""

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from recmesh.plugins.forecasting import Fitted, Floats, Ints, SeriesView, Unfit

INPUT, LABEL, OUTPUT = 96, 48, 96
WIDTH, HEADS, FORWARD, MODES, AVERAGE, ENCODERS = 32, 4, 64, 16, 25, 2
STEPS, BATCH, RATE = 500, 32, 2e-3
"""500 steps of 32 windows are within half a minute of one core; the time limit only cuts what is slower."""
CHUNK = 256
"""Windows of one pass of prediction."""


@lru_cache(maxsize=1)
def _network() -> Any:
    """The class; torch is imported here, in the pool's process, when the model is first used."""
    import torch
    from torch import nn

    class Decomposition(nn.Module):  # type: ignore[misc]  # torch is not followed
        """Trend by a moving average with held ends, and the rest."""

        def forward(self, x: Any) -> tuple[Any, Any]:
            half = AVERAGE // 2
            padded = torch.cat([x[:, :1].expand(-1, half, -1), x, x[:, -1:].expand(-1, half, -1)], dim=1)
            trend = nn.functional.avg_pool1d(padded.transpose(1, 2), AVERAGE, stride=1).transpose(1, 2)
            return x - trend, trend

    class FrequencyBlock(nn.Module):  # type: ignore[misc]
        """Equation 4 (FEB-f): a complex matrix on each of the chosen modes."""

        def __init__(self, modes: Any) -> None:
            super().__init__()
            self.register_buffer("modes", modes)
            self.project = nn.Linear(WIDTH, WIDTH)
            inner = WIDTH // HEADS
            self.weight = nn.Parameter(torch.randn(HEADS, inner, inner, len(modes), 2) / inner)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            heads = self.project(x).view(batch, length, HEADS, -1)
            spectrum = torch.fft.rfft(heads, dim=1)
            chosen = torch.einsum("bmhi,hiom->bmho", spectrum[:, self.modes], torch.view_as_complex(self.weight))
            out = torch.zeros(batch, length // 2 + 1, HEADS, chosen.shape[-1], dtype=spectrum.dtype, device=x.device)
            out[:, self.modes] = chosen
            return torch.fft.irfft(out, n=length, dim=1).reshape(batch, length, WIDTH)

    class FrequencyAttention(nn.Module):  # type: ignore[misc]
        """Equation 6 (FEA-f): attention between the modes of the decoder and those of the encoder, by tanh."""

        def __init__(self, modes: Any, others: Any) -> None:
            super().__init__()
            self.register_buffer("modes", modes)
            self.register_buffer("others", others)
            self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            inner = WIDTH // HEADS
            self.weight = nn.Parameter(torch.randn(HEADS, inner, inner, len(modes), 2) / inner)

        def forward(self, x: Any, memory: Any) -> Any:
            batch, length, _ = x.shape
            q = torch.fft.rfft(self.query(x).view(batch, length, HEADS, -1), dim=1)[:, self.modes]
            k = torch.fft.rfft(self.key(memory).view(batch, memory.shape[1], HEADS, -1), dim=1)[:, self.others]
            scores = torch.einsum("bmhi,bnhi->bhmn", q, k) / memory.shape[1]
            scores = torch.complex(scores.real.tanh(), scores.imag.tanh())
            mixed = torch.einsum("bhmn,bnhi->bmhi", scores, k)
            mixed = torch.einsum("bmhi,hiom->bmho", mixed, torch.view_as_complex(self.weight))
            out = torch.zeros(batch, length // 2 + 1, HEADS, mixed.shape[-1], dtype=q.dtype, device=x.device)
            out[:, self.modes] = mixed / WIDTH
            return torch.fft.irfft(out, n=length, dim=1).reshape(batch, length, WIDTH)

    class Forward(nn.Sequential):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(nn.Linear(WIDTH, FORWARD), nn.GELU(), nn.Dropout(0.05), nn.Linear(FORWARD, WIDTH))

    class Network(nn.Module):  # type: ignore[misc]
        """(batch, INPUT, features) and (batch, LABEL + OUTPUT, features) in, (batch, OUTPUT) out; feature 0 is the
        series."""

        def __init__(self, features: int, encoder_modes: Any, decoder_modes: Any) -> None:
            super().__init__()
            self.split = Decomposition()
            self.embed, self.embed_decoder = nn.Linear(features, WIDTH), nn.Linear(features, WIDTH)
            self.encode = nn.ModuleList([FrequencyBlock(encoder_modes) for _ in range(ENCODERS)])
            self.encode_forward = nn.ModuleList([Forward() for _ in range(ENCODERS)])
            self.decode = FrequencyBlock(decoder_modes)
            self.attend = FrequencyAttention(decoder_modes, encoder_modes)
            self.decode_forward = Forward()
            self.trends = nn.ModuleList([nn.Linear(WIDTH, 1) for _ in range(3)])
            self.out = nn.Linear(WIDTH, 1)
            for layer in (self.out, *self.trends):  # it starts as what the decoder starts from
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

        def forward(self, past: Any, start: Any) -> Any:
            x = self.embed(past)
            for block, feed in zip(self.encode, self.encode_forward, strict=True):
                x, _ = self.split(x + block(x))
                x, _ = self.split(x + feed(x))
            total = start[..., :1]
            y = self.embed_decoder(start)
            y, first = self.split(y + self.decode(y))
            y, second = self.split(y + self.attend(y, x))
            y, third = self.split(y + self.decode_forward(y))
            for layer, trend in zip(self.trends, (first, second, third), strict=True):
                total = total + layer(trend)
            return (total + self.out(y))[:, -OUTPUT:, 0]

    return Network


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _windows(values: Floats, origins: Ints, seasons: tuple[int, ...]) -> tuple[Floats, Floats, Floats, Floats]:
    """Past (windows, INPUT, features), start (windows, LABEL + OUTPUT, features), and each window's mean and deviation.

    Features: the series, what it was a shortest and a longest season before, and sine and cosine of the place in each
    season. Indices before the first value read the first.
    """

    def at(index: Ints) -> Floats:
        found: Floats = values[np.clip(np.minimum(index, origins[:, None] - 1), 0, None)]
        return found

    past_index = origins[:, None] + np.arange(-INPUT, 0)[None, :]
    start_index = origins[:, None] + np.arange(-LABEL, OUTPUT)[None, :]
    past = at(past_index)
    mean, deviation = past.mean(axis=1), past.std(axis=1) + 0.01 * np.abs(past).mean(axis=1) + 1e-9
    ahead = np.maximum(start_index - origins[:, None] + 1, 1)

    def features(index: Ints, lead: Ints) -> list[Floats]:
        made = []
        for season in sorted({*seasons[:1], *seasons[-1:]}):
            made.append(at(index - -(-lead // season) * season))
            turn = 2 * math.pi * (index % season) / season
            made += [np.sin(turn), np.cos(turn)]
        return made

    def scaled(block: Floats) -> Floats:
        made: Floats = (block - mean[:, None]) / deviation[:, None]
        return made

    def stacked(first: Floats, others: list[Floats]) -> Floats:
        rest = [scaled(each) if place % 3 == 0 else each for place, each in enumerate(others)]
        return np.stack([scaled(first), *rest], axis=2)

    others = features(start_index, ahead)
    known = start_index < origins[:, None]
    if seasons:
        level = past[:, -4:].mean(axis=1) - at(past_index[:, -4:] - seasons[-1]).mean(axis=1)
        guess = others[3 * (len({*seasons[:1], *seasons[-1:]}) - 1)] + level[:, None]
    else:
        guess = np.repeat(past[:, -1:], start_index.shape[1], axis=1)
    start = stacked(np.where(known, at(start_index), guess), others)
    return stacked(past, features(past_index, np.ones_like(past_index))), start, mean, deviation


@dataclass(frozen=True)
class _Fed:
    seasons: tuple[int, ...]
    modes: tuple[tuple[int, ...], tuple[int, ...]]
    state: dict[str, Any]
    """Parameters by name, as numpy arrays."""

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        import torch

        network = _built(self.seasons, self.modes)
        network.load_state_dict({name: torch.from_numpy(value) for name, value in self.state.items()})
        network.eval()
        device = _device()
        first = max(0, int(origins.min()) - INPUT - OUTPUT - max(self.seasons, default=1))
        first -= first % max(self.seasons, default=1)
        values, origins = values[first:], origins - first
        made = np.empty((len(origins), OUTPUT))
        with torch.no_grad():
            for lo in range(0, len(origins), CHUNK):
                some = slice(lo, lo + CHUNK)
                past, start, mean, deviation = _windows(values, origins[some], self.seasons)
                said = network(_tensor(past, device), _tensor(start, device)).cpu().numpy().astype(np.float64)
                made[some] = said * deviation[:, None] + mean[:, None]
        near = made[:, np.minimum(leads, OUTPUT) - 1]
        return np.clip(np.where(leads[None, :] <= OUTPUT, near, self._beyond(values, origins, leads, made)), 0.0, None)

    def _beyond(self, values: Floats, origins: Ints, leads: Ints, made: Floats) -> Floats:
        """Past its output: the season before, or the output's mean where there is none."""
        if not self.seasons:
            return np.repeat(made.mean(axis=1, keepdims=True), len(leads), axis=1)
        index = origins[:, None] + leads[None, :] - 1 - -(-leads // self.seasons[-1])[None, :] * self.seasons[-1]
        found: Floats = values[np.clip(index, 0, origins[:, None] - 1)]
        return found


def _tensor(block: Floats, device: str) -> Any:
    import torch

    return torch.from_numpy(block.astype(np.float32)).to(device)


def _built(seasons: tuple[int, ...], modes: tuple[tuple[int, ...], tuple[int, ...]]) -> Any:
    import torch

    torch.set_num_threads(1)  # cores are shared with the rest of the mesh, and CPU time is counted by thread
    features = 1 + 3 * len({*seasons[:1], *seasons[-1:]})
    return _network()(features, *(torch.tensor(each) for each in modes)).to(_device())


@dataclass(frozen=True)
class Fed:
    """Deterministic under a seed on a CPU, unless its time (CPU time of the thread) ends before its steps do."""

    name: str = "fed"
    dear: bool = True
    steps: int = STEPS

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """Adam on random windows of the newest part. Unfit with fewer values than ten windows."""
        began = time.thread_time()
        seasons = view.seasons
        least = max(INPUT, max(seasons, default=0)) + OUTPUT
        if len(view.values) < least + 10 * OUTPUT:
            raise Unfit(f"{len(view.values)} values; {least + 10 * OUTPUT} are needed")
        import torch

        modes = tuple(
            tuple(sorted(rng.permutation(length // 2)[:MODES].tolist())) for length in (INPUT, LABEL + OUTPUT)
        )
        torch.manual_seed(int(rng.integers(2**31)))
        pair = (modes[0], modes[1])
        network, device = _built(seasons, pair), _device()
        optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=self.steps)
        origins = np.arange(least - OUTPUT, len(view.values) - OUTPUT + 1)
        for _ in range(self.steps):
            if time.thread_time() - began > view.seconds:
                break
            some = np.sort(rng.choice(origins, BATCH))
            past, start, mean, deviation = _windows(view.values, some, seasons)
            truth_index = some[:, None] + np.arange(OUTPUT)[None, :]
            truth = (view.values[truth_index] - mean[:, None]) / deviation[:, None]
            wrong = (network(_tensor(past, device), _tensor(start, device)) - _tensor(truth, device)).abs()
            loss = (wrong * _tensor(view.weights[truth_index], device)).mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        return _Fed(seasons, pair, {name: value.cpu().numpy() for name, value in network.state_dict().items()})
