"""Candidate columns of a problem, and how much of an engine each piece of demand takes on each of them."""
