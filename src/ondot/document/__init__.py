"""A job as people write it: parsing, short forms, checks, defaults, merge patch, rendering.

The one place that knows the fields of a job. The API, the CLI, the SDK and the pages read and write jobs through it.
"""
