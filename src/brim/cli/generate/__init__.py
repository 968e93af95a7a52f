"""`brim generate`.

command    the options, and which backend they ask for
flags      the flags
here       generate with a model of this machine, on one rank or several
served     generate with a model server
run        the journal, the output and the figures of a run, for either backend
progress   progress on stderr
curves     Weights & Biases
"""
