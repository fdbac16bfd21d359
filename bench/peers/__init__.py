"""Other systems that the figures stand beside, run in the same minutes on the same machine."""
