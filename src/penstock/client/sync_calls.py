"""The types of synchronous calls to a server; at run time, all of them are `Sync`."""

from penstock.engine.sync_calls import __getattr__

__all__ = ["__getattr__"]
