"""What the server and the applications share about HTTP: routes, bodies, problems."""
