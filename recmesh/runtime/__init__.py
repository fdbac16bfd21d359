"""What every process needs and no domain should know."""
