"""How a plan is shown to people: words, tables and plots, the same in `recmesh explain` and on brain's page.

All of it is pure: an `Explanation` in, texts and pictures out. Times are shown by the clock that a caller gives.
"""
