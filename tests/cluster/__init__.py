"""On a real node: `make test-cluster`."""
