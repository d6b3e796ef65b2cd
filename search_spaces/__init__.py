"""The problem: workload.yaml and traces, read and checked, and the engine configs that may solve it."""
