"""The answer to a problem: the plan, the nearest miss if no fleet meets the SLOs, and why a config is excluded."""
