"""Values, the state machine, retry rules, errors and the store protocol: pure, without I/O or clock."""
