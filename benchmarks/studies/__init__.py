"""Published findings replayed in the simulator: ours beside theirs, one script per study (docs/appendix/studies.md)."""
