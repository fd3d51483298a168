"""Applications on the queue: each is a folder that uses the public API and the kit.

The package of an application has three names. `MANIFEST` declares its name, queues and tasks.
`Settings` is a Struct whose fields are set in the section of its name. `install(penstock, settings,
data)` registers its tasks and returns an `Application`; `data` is the folder for its files.

The names of an application's jobs start with its own name, which is reserved for its routes. Its
handlers decode arguments into types that hold nothing a route would refuse, because a job may have
been stored by other means.
"""
