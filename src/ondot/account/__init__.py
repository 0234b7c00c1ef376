"""Which account of this machine is at the other end of a connection, and the token for those that are another's.

Without API keys ondot answers its own account only. `sockets` asks the kernel, `token` keeps what everybody else needs.
"""
