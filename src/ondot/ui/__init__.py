"""People: pages rendered on the server, live by server-sent events or by asking again (O5).

They read through `store`, and through `flow.explain` why something does not run. What a page changes it changes by
calling the API from the browser, so that there is one way to do it.

`build_pages` mounts them on the API's application; everything a page needs comes from this process, and no page runs a
script or a style that is not a file of `static/`.
"""
