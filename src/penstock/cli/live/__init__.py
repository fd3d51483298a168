"""What the live views `jobs --watch` and `top` share: reading, following and formatting."""
