"""The command line: run workers, look at jobs and queues, steer them."""
