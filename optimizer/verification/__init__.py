"""Fleets judged by simulation: verdict and blame, repairs, no waste, tuning, and the record of it."""
