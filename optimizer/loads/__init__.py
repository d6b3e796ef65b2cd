"""What a search is given: the demand as flows, and a table of engines over them."""
