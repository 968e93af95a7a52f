from typing import Any

def lay_out(
    source: Any,
    learned: Any,
    begin: Any,
    lengths: Any,
    row_ptr: Any,
    kind: str,
    rows: int,
    width: int,
    pad_id: int,
    ignored: int,
    tokens: Any,
    segment_ids: Any,
    positions: Any,
    loss_mask: Any,
    labels: Any,
    cu_seqlens: Any,
    /,
) -> tuple[int, int, int]: ...
