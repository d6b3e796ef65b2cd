"""What a plan says: its fields, what was simulated and what was proved."""
