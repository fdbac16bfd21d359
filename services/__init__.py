"""Six applications. They share no imports: they meet on the wire only."""
