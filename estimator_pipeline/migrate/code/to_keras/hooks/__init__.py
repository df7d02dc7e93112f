"""Session hooks of programs: to callbacks, or to nothing where they only log."""
