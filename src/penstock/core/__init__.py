"""Values, the state machine, the rules that decide, and the store protocol: no I/O, no clock."""
