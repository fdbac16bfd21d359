"""Facts out to the bus, and jobs' facts back from it."""
