"""Documents, and their views: terminal, Markdown, HTML and JSON; deployment files."""
