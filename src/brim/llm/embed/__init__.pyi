from brim.llm.embed.base import Embedder as Embedder
from brim.llm.embed.endpoint import InProcessEndpoint as InProcessEndpoint
from brim.llm.embed.hash import HashEmbedder as HashEmbedder
from brim.llm.embed.open import open_embedder as open_embedder
from brim.llm.embed.transformers import TransformersEmbedder as TransformersEmbedder
