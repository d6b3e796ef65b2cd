"""The search for the cheapest fleet by formula: settings, fleets of one and two pools, mixtures, and the bound."""
