"""What attempts call, behind `ports.target`: one module or package for each kind.

http/        target, addresses (which an HTTP call may reach), phases (its times), answer and bounded (what is read)
function/    target (in this process), child (in a child process), placement (which of the two), attempt (one call)
shell        a shell command
processes/   shared by shell commands and child processes: start, confine, watch, end with all descendants
cancelling   waits for a cancel · output: which lines of an attempt are kept · text: text that can be stored
"""
