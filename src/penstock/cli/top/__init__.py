"""`penstock top`: queues, jobs and workers on a terminal, live, and what to do about them."""
