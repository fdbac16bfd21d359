"""Simulated days of a fleet that training and serving share, under several rules of lending."""
