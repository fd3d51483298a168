"""The command line: run workers and servers, and inspect and control jobs and queues."""
