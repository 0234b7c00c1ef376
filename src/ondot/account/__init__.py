"""The account at the other end of a local connection, and the token for other accounts.

Without API keys ondot answers its own account only. `sockets` asks the kernel; `token` keeps the token that everybody
else needs.
"""
