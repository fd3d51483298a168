"""Orders, and a task that confirms them."""
