"""What attempts call, behind `ports.target`: one module for each kind.

http · function · shell    the kinds; each ends its call itself when the timeout is over or it is cancelled
functions                  where a function runs: here, or in a child once it has lost workers
child                      suspects in child processes: child_process, child_protocol, and child_main on their side
cancelling                 the wait for a cancel, and its words
addresses · phases         which addresses an HTTP call may go to; its three times
answer · bounded           what of an answer is read and kept, and how much may come around it
attempt · threads          one call of a function; where plain ones run
process · descendants      a program and its output; who belongs to it when it is ended
guard                      the end of all programs when their worker dies, however; guard_main on its side
output · prints            the lines of an attempt that are kept, and how many; what a function prints
exceptions · reports       what a handler raised; the words that all kinds share
"""
