"""What an output must match, in the forms that llguidance reads.

requested    the grammar that a request's fields ask for, that of calls that are forced, and what
             precedes a constrained answer
json_schema  JSON schemas as grammars, and what of them can be enforced
references   references of a function's parameters, made fit to move
"""
