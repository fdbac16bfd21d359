"""Serving a model on CPU nodes (CN) and accelerator nodes (HN): how it is split, sent, admitted and run.

After Prism (Yang et al., NSDI 2025). A CN runs lookups and whatever only they feed, an HN the dense part.
"""
