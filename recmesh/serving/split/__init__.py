"""Splits a model in halves: sparse work for CPU nodes (CN), dense work for an accelerator node (HN), by a minimum cut.

After Prism (Yang et al., NSDI 2025). The graph, the classes of operators and the cut know no framework; the front
ends (`torch_program`, `tensorflow_program`) read a model into the graph and write its halves.
"""
