"""Plots: well-formed whatever is drawn, everything inside, nothing of the page's own in a text."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.runtime.ops import Page, Plots, Tone
from recmesh.runtime.ops.plots import HEIGHT, WIDTH, Axis, Dot, Dots, Moment, Plot, Scale, svg
from recmesh.runtime.ops.render import Renderer

NAMESPACE = "{http://www.w3.org/2000/svg}"
EVIL = '"><script>alert(1)</script>\x00\ud800&'


def plot(*dots: Dot, scale: Scale = Scale.LINEAR, **options: object) -> Plot:
    return Plot("title", Axis("x", scale), Axis("y", scale), [Dots("dots", dots)], **options)  # type: ignore[arg-type]  # as named by each test


def parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)


def circles(drawn: str) -> list[tuple[float, float]]:
    found = [each for each in parsed(drawn).iter(f"{NAMESPACE}circle") if each.get("class") != "ring"]
    return [(float(each.get("cx", "nan")), float(each.get("cy", "nan"))) for each in found][:-1]  # less the legend's


def ticks(drawn: str) -> list[str]:
    return [each.text or "" for each in parsed(drawn).iter(f"{NAMESPACE}text") if each.get("class") == "tick"]


EXTREMES = [
    0.0, 1.0, -1.0, 5e-324, 1e-300, 1e-100, 1e100, -1e100, 1e100 * (1 + 1e-15), 1e300, 1.7e308, math.nan, math.inf,
]  # fmt: skip
numbers = st.floats() | st.sampled_from(EXTREMES)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=5),
    st.sampled_from([*Scale]), st.sampled_from([*Scale]), st.booleans(), st.booleans(), st.text(max_size=5),
)  # fmt: skip
def test_whatever_is_drawn_is_well_formed_and_inside(
    points: list[tuple[float, float, float, float]], x: Scale, y: Scale, diagonal: bool, zero: bool, words: str
) -> None:
    drawn = svg(Plot(
        words, Axis(words, x, from_zero=zero), Axis(words, y, from_zero=zero),
        [Dots(words, [Dot(a, b, low, high, words, words, is_chosen=diagonal) for a, b, low, high in points])],
        moments=[Moment(a, words) for a, _, _, _ in points], has_diagonal=diagonal and x is y,
    ))  # fmt: skip
    if not drawn:
        return
    root = parsed(drawn)
    for name, limit in (("x", WIDTH), ("y", HEIGHT)):
        for key in (name, f"{name}1", f"{name}2", f"c{name}"):
            places = [each.get(key) for each in root.iter() if each.tag != f"{NAMESPACE}text" and each.get(key)]
            assert all(-1e-6 <= float(place or "nan") <= limit + 1e-6 for place in places), (key, places)


def test_more_is_further_right_and_higher_up() -> None:
    for scale in Scale:
        (x1, y1), (x2, y2) = circles(svg(plot(Dot(10.0, 20.0), Dot(1000.0, 3000.0), scale=scale)))
        assert x1 < x2 and y1 > y2


def test_what_cannot_be_drawn_is_left_out_and_nothing_at_all_is_no_picture() -> None:
    assert svg(plot()) == ""
    assert svg(plot(Dot(math.nan, 1.0), Dot(1.0, math.inf), Dot(1e105, 1.0))) == ""
    assert svg(plot(Dot(0.0, 1.0), Dot(1.0, -1.0), scale=Scale.LOG)) == ""
    assert len(circles(svg(plot(Dot(0.0, 1.0), Dot(5.0, 7.0), scale=Scale.LOG)))) == 1


def test_points_on_the_diagonal_are_on_its_line() -> None:
    drawn = svg(plot(Dot(10.0, 10.0), Dot(200.0, 200.0), Dot(10.0, 50.0), scale=Scale.LOG, has_diagonal=True))
    line = next(each for each in parsed(drawn).iter(f"{NAMESPACE}line") if each.get("class") == "diagonal")
    x1, y1, x2, y2 = (float(line.get(key, "nan")) for key in ("x1", "y1", "x2", "y2"))
    above = [(y - y1) - (x - x1) * (y2 - y1) / (x2 - x1) for x, y in circles(drawn)]
    assert above[:2] == pytest.approx([0.0, 0.0], abs=0.2) and above[2] < -5


def test_an_interval_reaches_from_its_low_to_its_high_end() -> None:
    drawn = svg(plot(Dot(1.0, 10.0, low=5.0, high=20.0), Dot(2.0, 5.0), Dot(3.0, 20.0)))
    whisker = next(each for each in parsed(drawn).iter(f"{NAMESPACE}line") if "whisker" in (each.get("class") or ""))
    (_, _), (_, low), (_, high) = circles(drawn)
    assert [whisker.get("y1"), whisker.get("y2")] == [f"{low:.1f}", f"{high:.1f}"]


@pytest.mark.parametrize(("scale", "low", "high", "expected"), [
    (Scale.LINEAR, 0.0, 10.0, {"0", "2", "4", "6", "8", "10"}),
    (Scale.LOG, 10.0, 1000.0, {"10", "20", "50", "100", "200", "500", "1000"}),
    (Scale.LOG, 1100.0, 1400.0, {"1000", "1200", "1400", "1600"}),
    (Scale.LOG, 1e-9, 1e9, {"1", "10 k", "100 M"}),
    (Scale.TIME, 0.0, 600.0, {"00:00", "00:02", "00:04", "00:06", "00:08", "00:10"}),
    (Scale.TIME, 0.0, 20.0, {"00:00:00", "00:00:05", "00:00:20"}),
])  # fmt: skip
def test_ticks_are_round(scale: Scale, low: float, high: float, expected: set[str]) -> None:
    drawn = svg(Plot("t", Axis("x", scale), Axis("y"), [Dots("", [Dot(low, 1.0), Dot(high, 1.0)])]))
    assert expected <= set(ticks(drawn))


def test_no_text_is_markup() -> None:
    drawn = svg(Plot(
        EVIL, Axis(EVIL), Axis(EVIL), [Dots(EVIL, [Dot(1.0, 1.0, note=EVIL, label=EVIL)], Tone.OK)],
        moments=[Moment(1.0, EVIL)],
    ))  # fmt: skip
    assert not list(parsed(drawn).iter(f"{NAMESPACE}script")) and "<script" not in drawn
    drawn.encode()


@pytest.mark.asyncio
async def test_a_panel_shows_plots_of_what_was_chosen_and_says_why_one_is_empty() -> None:
    page = Page("tests", [Plots("plots", lambda choice: [
        Plot(choice.get("job", EVIL), Axis("x"), Axis("y"), [Dots("", [Dot(1.0, 1.0)])], note=EVIL),
        Plot("none", Axis("x"), Axis("y"), [], empty="nothing was measured"),
    ])], choices=("job",))  # fmt: skip
    (chosen,) = await Renderer(page).fragments({"job": "mine"})
    assert chosen.html.count("<svg") == 1 and "<figcaption>mine</figcaption>" in chosen.html
    assert "nothing was measured" in chosen.html and "<script" not in chosen.html
    file = await Renderer(page).file()
    assert "<svg" in file and "svg.plot" in file and "alert(1)</script>" not in file
    assert "href=" not in file and "src=" not in file and "url(" not in file, "one file, and nothing from elsewhere"


@pytest.mark.parametrize("scale", [*Scale])
@pytest.mark.parametrize("has_diagonal", [False, True])
def test_one_number_so_large_that_the_axis_has_no_length_is_drawn_in_the_middle(
    scale: Scale, has_diagonal: bool
) -> None:
    large = 2.882303761517118e17
    for x, y in ((large, 0.0), (0.0, large), (large, large)):
        drawn = svg(Plot("t", Axis("x", scale), Axis("y", scale), [Dots("a", [Dot(x, y)])], has_diagonal=has_diagonal))
        assert "nan" not in drawn
