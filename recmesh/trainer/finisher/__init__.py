"""The finisher: turns a job's last snapshot into a model that serves, and says how good it is."""
