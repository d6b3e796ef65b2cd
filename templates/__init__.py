"""Jinja templates, as package resources."""
