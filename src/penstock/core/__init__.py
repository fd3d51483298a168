"""Values, the state machine, retry rules, errors, the store protocol: no I/O, no clock."""
