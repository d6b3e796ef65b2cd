"""Views of a document: terminal and Markdown; they know nothing of plans."""
