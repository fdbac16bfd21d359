"""The cut as a picture (SVG): what runs on which side, and every tensor that goes over the network, by its bytes."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

from recmesh.serving.split.classes import Class
from recmesh.serving.split.decide import Cost, Decision
from recmesh.serving.split.graph import OperatorGraph
from recmesh.serving.split.layout import PACKED_BYTES

MOST_TENSORS, MOST_KINDS = 14, 12
"""More would not be read."""
_WIDTH, _SIDE, _ROW, _TOP = 1000, 250, 22, 96
_STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#1b2430}
.quiet{fill:#667085}.title{font-size:15px;font-weight:600}.head{font-weight:600}
.card{fill:#fff;stroke:#e0e5ec}.cpu{fill:#a15c00}.seed{fill:#16803f}.neutral{fill:#667085}
.sent{stroke:#2f6fed}.back{stroke:#12966a}.bytes{font-variant-numeric:tabular-nums}
"""


@dataclass(frozen=True, slots=True)
class _Arrow:
    label: str
    size: int
    is_back: bool


def svg(title: str, graph: OperatorGraph, decision: Decision) -> str:
    """One picture, legible without the text around it."""
    arrows = [*_arrows(graph, decision.cost.sent, is_back=False), *_arrows(graph, decision.cost.returned, is_back=True)]
    regions = decision.regions
    left = _kinds(graph, decision, regions.pre)
    after = _kinds(graph, decision, regions.post)
    right = _kinds(graph, decision, regions.hn)
    rows = max(len(left) + (len(after) + 2 if after else 0), len(right), len(arrows)) + 2
    height = _TOP + rows * _ROW + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        f' role="img" aria-label="{escape(title, quote=True)}"><style>{_STYLE}</style>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
        ' markerUnits="userSpaceOnUse"><path d="M0 0 L8 4 L0 8 z" fill="#667085"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#f4f6f9"/>',
        f'<text class="title" x="24" y="32">{escape(title)}</text>',
        f'<text class="quiet" x="24" y="52">{escape(_summary(decision))}</text>',
        *_card(24, _TOP - 24, rows, f"CN (CPU): {_count(len(regions.pre))}", left),
        *_card(_WIDTH - _SIDE - 24, _TOP - 24, rows, f"HN (accelerator): {_count(len(regions.hn))}", right),
    ]
    if after:
        y = _TOP + (len(left) + 1) * _ROW + 10
        parts.append(f'<text class="head" x="36" y="{y}">CN, after it: {_count(len(regions.post))}</text>')
        parts += _lines(36, y + _ROW, after)
    start, end = 24 + _SIDE + 6, _WIDTH - _SIDE - 30
    largest = max((each.size for each in arrows), default=1) or 1
    for number, each in enumerate(arrows):
        y = _TOP + 14 + number * _ROW
        width = 1 + 6 * each.size / largest
        kind, here, there = ("back", end, start) if each.is_back else ("sent", start, end)
        parts.append(
            f'<line class="{kind}" x1="{here}" y1="{y + 6}" x2="{there}" y2="{y + 6}" stroke-width="{width:.1f}"'
            f' opacity=".35" marker-end="url(#tip)"/>'
            f'<text x="{start + 8}" y="{y}">{escape(each.label)}</text>'
            f'<text class="bytes" x="{end - 14}" y="{y}" text-anchor="end">{each.size:,} B</text>'
        )
    foot = ("Brown: must be on a CPU. Green: products, attention. Grey: wherever the cut is smallest.",
            "Blue lines: sent to the HN. Green lines: sent back. As thick as they are large.")  # fmt: skip
    parts += [f'<text class="quiet" x="24" y="{height - 36 + 18 * n}">{line}</text>' for n, line in enumerate(foot)]
    return "".join([*parts, "</svg>\n"])


def _summary(decision: Decision) -> str:
    cost, naive = decision.cost, decision.naive
    return (
        f"Per request {cost.sent_bytes:,} B to the HN and {cost.returned_bytes:,} B back: {cost.bytes:,} B; "
        f"naive colouring {naive.bytes:,} B ({decision.reduction:.0%} fewer)"
    )


def _arrows(graph: OperatorGraph, names: Sequence[str], *, is_back: bool) -> list[_Arrow]:
    ranked = sorted(names, key=lambda name: -graph.tensors[name].bytes)
    shown, rest = ranked[:MOST_TENSORS], ranked[MOST_TENSORS:]
    found = [_Arrow(_label(graph, name), graph.tensors[name].bytes, is_back) for name in shown]
    if rest:
        found.append(_Arrow(f"{len(rest)} others", sum(graph.tensors[name].bytes for name in rest), is_back))
    return found


def _label(graph: OperatorGraph, name: str) -> str:
    tensor = graph.tensors[name]
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    packed = ", packed" if tensor.bytes <= PACKED_BYTES else ""
    return f"{short(name)}  {tensor.dtype} {shape}{packed}"


def short(name: str, most: int = 30) -> str:
    """The end of a long name, which tells more than its beginning."""
    name = name.removesuffix(":0")
    return name if len(name) <= most else "…" + name[-most + 1:]


def _kinds(graph: OperatorGraph, decision: Decision, names: Collection[str]) -> list[tuple[str, str]]:
    """(class, text) by kind of operator, CPU operators and seeds first."""
    counts = Counter((decision.classes[name], graph.by_name[name].kind) for name in names)
    order = {Class.CPU: 0, Class.SEED: 0, Class.NEUTRAL: 1}
    ranked = sorted(counts.items(), key=lambda each: (order.get(each[0][0], 2), -each[1], each[0][1]))
    found = [
        (kind.value, f"{count} × {short(name.removesuffix('.default'))}") for (kind, name), count in ranked[:MOST_KINDS]
    ]
    if rest := sum(count for _, count in ranked[MOST_KINDS:]):
        found.append(("neutral", f"and {rest} others"))
    return found


def _card(x: int, y: int, rows: int, head: str, lines: Sequence[tuple[str, str]]) -> list[str]:
    return [
        f'<rect class="card" x="{x}" y="{y}" width="{_SIDE}" height="{rows * _ROW + 14}" rx="10"/>',
        f'<text class="head" x="{x + 12}" y="{y + 24}">{escape(head)}</text>',
        *_lines(x + 12, y + 24 + _ROW, lines),
    ]


def _lines(x: int, y: int, lines: Sequence[tuple[str, str]]) -> list[str]:
    return [
        f'<text class="{kind}" x="{x}" y="{y + number * _ROW}">{escape(text)}</text>'
        for number, (kind, text) in enumerate(lines)
    ]


def _count(operators: int) -> str:
    return f"{operators} operator{'' if operators == 1 else 's'}"


def tensors(graph: OperatorGraph, cost: Cost) -> list[tuple[str, str]]:
    """(direction, tensor) of all that crosses, largest first."""
    found = [("CN → HN", name) for name in cost.sent] + [("HN → CN", name) for name in cost.returned]
    return sorted(found, key=lambda each: (each[0], -graph.tensors[each[1]].bytes))
