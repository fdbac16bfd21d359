"""The ops page: what serves, how fast, what went wrong, and the way to the other services' pages."""
