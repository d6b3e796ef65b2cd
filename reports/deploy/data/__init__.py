"""Facts about deployment targets, as package resources."""
