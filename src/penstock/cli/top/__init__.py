"""`penstock top`: queues, jobs and workers on a terminal, live, with actions on them."""
