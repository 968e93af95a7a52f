"""Episodes of ARC environments as samples to train on.

tokens    transcripts of episodes as tokens of the tokenizer "arc", and their lengths without writing them
decode    tokens back to transcripts and actions
samples   ArcSampleConfig and ArcSampler: samples with their origin; rows for `brim train sft`
stream    ArcEpisodeStream: the samples of a file or a list of episodes, resumable
"""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
