"""Late flights: a small real data set, and the job that the demo trains."""
