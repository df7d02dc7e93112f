"""Programs of several files: joined, converted as one, split again; and the rule that the scan asks."""
