"""The engine: `Penstock`, the object users hold, and the parts that it is composed of.

Each part is a plain object over one `Connection`. `penstock.engine.protocol` describes all of them
as a store and a server offer them alike.
"""
