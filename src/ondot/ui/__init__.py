"""People: pages rendered on the server, live by server-sent events (O5). Reads through `store`, writes through `flow`.

`build_pages` mounts them on the API's application; everything a page needs comes from this process, and no page runs a
script or a style that is not a file of `static/`.
"""
