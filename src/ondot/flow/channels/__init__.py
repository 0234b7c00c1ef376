"""Channels (O4): `manage` creates and changes them, `send` queues messages, `deliver` is the attempt that sends one,
`forms` has the bodies that receivers read, `credentials` their secrets."""
