"""Claims jobs, runs their handlers, settles what came of them."""
