"""What shardsvc remembers: the queue in Valkey; task log, runs and datasets in JetStream."""
