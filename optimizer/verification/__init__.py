"""Fleets judged by simulation: runs and verdicts, the search for the cheapest that holds, tuning, and the record."""
