"""Views of a plan: terminal text, JSON and HTML."""
