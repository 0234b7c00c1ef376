"""What attempts call, behind `ports.target`: one module for each kind.

http · function · shell    the kinds; each ends its call itself when the timeout is over or it is cancelled
addresses                  which addresses an HTTP call may go to
threads                    where plain functions run
output                     the lines of an attempt that are kept, and how many
reports                    the words that all kinds share
"""
