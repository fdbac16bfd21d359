"""Models that benchmarks give to a mesh as a user's code."""
