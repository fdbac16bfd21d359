"""The evaluator: judges the model on the evaluation rows while it is being trained."""
