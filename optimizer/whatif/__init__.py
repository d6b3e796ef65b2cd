"""What-if questions: scenarios, sweeps, frontiers, break-even prices, shadow prices."""
