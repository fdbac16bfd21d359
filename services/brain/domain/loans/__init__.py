"""Loans of training's room to serving: what is lent when, by whom, and the ledger of it.

A loan is of one unit: the room of one HN. Units are lent ahead of a forecast peak and returned after it.
"""
