"""Published findings replayed in the simulator: ours beside theirs, one script per study (docs/studies.md)."""
