"""Workers: claim jobs, run their handlers and settle the outcomes."""
