"""Documents: what each command answers, in sentences and tables that any view shows."""
