"""People sign in to the pages (T1, T7): passwords, sessions, an OpenID provider, and the users of a tenant.

passwords   argon2id, a few at a time
sign_in     from an e-mail and a password, an invitation, or the provider's word to a session
sessions    which caller a cookie stands for, at most half a second old
oidc        the provider: discovery, keys, the code flow
attempts    what the browser keeps while it is at the provider
users       create, change, invite and delete users
"""
