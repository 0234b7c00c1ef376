"""What attempts call, behind `ports.target`: one module or package for each kind.

http/        target, addresses (which an HTTP call may reach), phases (its times), answer and bounded (what is read)
function/    target (in this process), child (in a child process), placement (which of the two), attempt (one call)
shell        a shell command
processes/   what shell commands and child processes share: start, confine, watch, end with all descendants
cancelling   the wait for a cancel and its words · output: the lines of an attempt that are kept · reports: shared words
"""
