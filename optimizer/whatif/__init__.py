"""Many problems at once: scenarios, sweeps, frontiers, break-evens, shadow prices."""
