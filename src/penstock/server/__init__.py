"""The HTTP server: a store as a service for any language."""
