"""Expectations of jobs (O11): `watch` looks at what is due, `words` says why it was missed."""
