"""The report of a night (O10): what went wrong in a window, the worst first, each with the call that repairs it.

`window` reads "24h", "yesterday" or an instant; `findings` are the lines; `repairs` are the calls. Pure.
"""
