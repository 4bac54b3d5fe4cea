"""What was seen: frozen dataclasses, standard library only, JSON in and out.

A fact never holds a tensor, a module or a sentence written for people.
"""
