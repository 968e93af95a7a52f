"""Dense attention masks that keep segments apart.

For short rows, tests and inspection: a mask has length x length entries.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError


def create_segment_attention_mask(
    segment_ids: NDArray[np.integer[Any]], *, kind: Literal["boolean", "additive"] = "boolean", causal: bool = True
) -> NDArray[Any]:
    """Return the attention mask for segment ids: [..., length] gives [..., length, length], queries first.

    A token attends to its own segment and, if `causal`, to no token after it. Padding (segment 0) attends to
    nothing and is attended by nothing. "boolean": True where allowed. "additive": float32, 0 where allowed and the
    lowest finite number elsewhere, so that a row of padding gives a uniform softmax instead of NaN.

    Example:
        >>> create_segment_attention_mask(np.array([1, 1, 2, 0])).astype(int)
        array([[1, 0, 0, 0],
               [1, 1, 0, 0],
               [0, 0, 1, 0],
               [0, 0, 0, 0]])
    """
    if kind not in ("boolean", "additive"):
        raise OptionError(f"kind must be boolean or additive, got {kind!r}")
    segments = np.asarray(segment_ids)
    queries, keys = segments[..., :, None], segments[..., None, :]
    allowed = (queries == keys) & (keys != 0)
    if causal:
        allowed &= np.tri(segments.shape[-1], dtype=np.bool_)
    if kind == "boolean":
        return allowed
    return np.where(allowed, np.float32(0), np.finfo(np.float32).min)
