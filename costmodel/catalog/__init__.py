"""Data files of the catalog: accelerators, prices, kernel efficiencies and models; read by `search_spaces`."""
