"""HTTP for the server and the applications: routes, bodies, problems, jobs as JSON."""
