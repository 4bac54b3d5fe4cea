"""Sees the ops of a pass: which op made which tensor, where in the program, and its figures."""
