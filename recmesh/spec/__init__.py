"""What users write: the specifications of jobs and datasets, one shape for CLI, REST, events and CRDs."""
