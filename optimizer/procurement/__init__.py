"""Buying and running over time: reserve, buy or rent, autoscale, and lose a node."""
