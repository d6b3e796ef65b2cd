"""Fits the roofline's few physical coefficients to measured kernel times, and says how well they fit."""
