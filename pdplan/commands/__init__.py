"""The commands, one module per subject; what is slow to import is imported inside them."""
