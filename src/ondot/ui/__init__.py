"""Pages for people, rendered on the server and kept live by server-sent events or by polling (O5).

They read through `store`, and through `flow.explain` why something does not run. A page changes things by calling the
API from the browser, so that there is one way to do it.

`build_pages` mounts them on the API's application. Everything a page needs comes from this process, and a page runs
only scripts and styles that are files of `static/`.
"""
