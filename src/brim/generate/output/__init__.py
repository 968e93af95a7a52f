"""The files of a run of `brim generate`: responses as lines of JSON, and the journal that they are written from.

    prompts   the prompts of a run, and how they are sent to the model
    lines     a response as a line of the output
    journal   every finished response, from which a run resumes after SIGKILL
    share     which rank generates which responses
    weights   a fingerprint of the files of a model
    write     the output

Nothing here imports torch.
"""
