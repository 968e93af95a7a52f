"""ARC as a text task: prompts and checkable answers for language models from the tasks of `brim.envs.arc`.

    encodings   grids as text, and exactly back
    options     ArcText, and names such as arc:arcagi2,encoding=letters,max_size=10
    build       examples of the tasks of a split
    score       the grid of a response, and how similar it is to the answer

The environment is not played here, and neither torch, JAX nor Gymnasium is imported.
"""
