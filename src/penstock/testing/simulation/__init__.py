"""A simulated world, in which one seed decides every interleaving, crash and jump of the clock."""
