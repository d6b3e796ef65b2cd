"""The answer to a problem: the plan, the nearest miss where there is none, and why a config is out."""
