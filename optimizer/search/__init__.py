"""Other fleets beside the recommended one: of one kind, of other engines, by evaluation, apart by class."""
