"""Data sets of prompts with answers that can be checked.

    example     Example: a prompt, its reference answer and what ends a response to it
    template    the prompt that asks for reasoning and for an answer in tags
    registry    DATASET_REGISTRY, build_dataset and sample_examples
    arithmetic  sums, differences and products; built in
    gsm8k       GSM8K from local files
    reasoning   the tasks of the package reasoning-gym
    arc         ARC tasks as text, with grids in several encodings
    files       a JSONL file of prompts
    check       score_response: compare a response with the reference

Nothing here imports torch or downloads anything.
"""
