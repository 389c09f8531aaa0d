"""Published checkpoints: one declarative table per family, read in both directions."""
