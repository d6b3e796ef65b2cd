"""Which blocks of engines serve the demand at least cost: the programs, the bound and the search in whole numbers."""
