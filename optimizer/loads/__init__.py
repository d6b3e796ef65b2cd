"""What a search is given: the demand as flows, a table of engines over them, and the settings to choose from."""
