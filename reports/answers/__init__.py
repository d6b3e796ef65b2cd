"""The answer of each command as a document of sentences, tables and charts."""
