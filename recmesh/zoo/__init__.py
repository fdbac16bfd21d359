"""Ready models: each is a readable `main(job)` whose defaults `model.params` may change."""
