"""Serving in steady state: what a request waits for and how fast its tokens come, at a concurrency or at a rate."""
