"""The command `manage.py penstock`."""
