"""Manifests and images."""
