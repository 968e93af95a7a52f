"""However sequences are laid out and whichever attention keeps them apart, a model computes the same as for one
sequence at a time.
"""

import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs import PACKED, PADDED, VOCABULARY, make_plan, make_store
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from brim import MicrobatchSpec, OptionError, Sample, create_segment_attention_mask
from brim.batch.attention import block_mask, register, segment_attention
from brim.batch.batch import Batch
from brim.batch.collate import collate, default_collate
from brim.batch.torch import TensorBatch, loader

EAGER = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


def layout(rows, width):
    """A batch of rows of segments with these lengths, as far as attention sees it."""
    segments = np.zeros((len(rows), width), np.int32)
    for row, lengths in zip(segments, rows, strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    nothing = np.zeros_like(segments)
    flat = [length for lengths in rows for length in lengths]
    ends = np.cumsum([0, *flat]).astype(np.int32)
    spec = MicrobatchSpec.unplanned(range(len(flat)), np.array(flat, np.int32), width)
    return Batch(nothing, segments, nothing, nothing.astype(np.uint8), nothing, ends, spec=spec)


@st.composite
def layouts(draw, width=40):
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        lengths, left = [], width
        while left and draw(st.booleans()):
            lengths.append(draw(st.integers(1, left)))
            left -= lengths[-1]
        rows.append(lengths)
    return layout(rows, width)


def heads(batch, *, query_heads=4, key_heads=2, size=8, length=None):
    random = torch.Generator().manual_seed(0)
    rows, width = batch.shape if length is None else (1, length)
    shapes = [(rows, count, width, size) for count in (query_heads, key_heads, key_heads)]
    return [torch.randn(shape, generator=random, requires_grad=True) for shape in shapes]


def dense(query, key, value, mask):
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


# segment_attention

lengths = st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(sum)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(sum),
    st.sampled_from([(4, 4), (4, 2), (4, 1)]),
    st.none() | st.integers(1, 12),
)
def test_segment_attention_is_dense_attention_under_the_mask_of_the_segments(lengths, counts, window):
    """Values and gradients; with fewer heads for keys; with a sliding window."""
    batch = layout([lengths], sum(lengths))
    mask = create_segment_attention_mask(batch.segment_ids)
    if window is not None:
        at = np.arange(batch.max_len)
        mask = mask & (at[:, None] - at[None, :] < window)
    query, key, value = heads(batch, query_heads=counts[0], key_heads=counts[1])
    expected = dense(query, key, value, torch.from_numpy(mask)[:, None])
    found, _ = segment_attention(
        None, query, key, value, cu_seq_lens_q=torch.from_numpy(batch.cu_seqlens), sliding_window=window
    )
    torch.testing.assert_close(found.transpose(1, 2), expected, rtol=1e-5, atol=1e-5)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    wanted = torch.autograd.grad((expected * weight).sum(), (query, key, value))
    gotten = torch.autograd.grad((found.transpose(1, 2) * weight).sum(), (query, key, value))
    torch.testing.assert_close(gotten, wanted, rtol=1e-4, atol=1e-5)


def test_without_boundaries_every_row_is_a_segment():
    query, key, value = heads(layout([[5], [9]], 9))
    found, _ = segment_attention(None, query, key, value, scaling=0.5)
    expected = scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.5, enable_gqa=True)
    torch.testing.assert_close(found.transpose(1, 2), expected)


class TwoWays:
    is_causal = False


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (None, {"attention_mask": torch.ones(1)}, "takes no mask"),
        (None, {"softcap": 30.0}, "this model caps its attention scores"),
        (None, {"s_aux": torch.ones(4)}, "this model has attention sinks"),
        (None, {"is_causal": False}, "is causal, this model's is not"),
        (TwoWays, {}, "is causal, this model's is not"),
        (None, {"cu_seq_lens_q": torch.tensor([0, 3, 8])}, "segments end at 8, but the batch is 1 rows of 9 tokens"),
    ],
)
def test_what_segment_attention_would_get_wrong_it_refuses(module, options, message):
    with pytest.raises(OptionError, match=message):
        segment_attention(module, *heads(layout([[9]], 9)), **options)


def test_segments_are_told_in_one_row_only_and_caches_are_refused():
    query, key, value = heads(layout([[9], [9]], 9))
    with pytest.raises(OptionError, match="the batch is 2 rows of 9 tokens; it must be one row"):
        segment_attention(None, query, key, value, cu_seq_lens_q=torch.tensor([0, 4, 9]))
    with pytest.raises(
        OptionError, match=r'1 new tokens cannot attend to 9 cached ones; before generating, call .*"sdpa"'
    ):
        segment_attention(None, query[:, :, -1:], key, value)


# block_mask


@settings(max_examples=60)
@given(layouts(), st.sampled_from([1, 4, 8, 16, 64]))
def test_a_block_mask_is_the_dense_mask_entry_by_entry(batch, block):
    rows, width = batch.shape
    mask = create_segment_attention_mask(batch.segment_ids)
    blocks = block_mask(batch, block=block)
    b, q, k = (torch.arange(size) for size in (rows, width, width))
    entries = blocks.mask_mod(b[:, None, None], torch.tensor(0), q[None, :, None], k[None, None, :])
    assert np.array_equal(entries.numpy(), mask)
    count = -(-width // block)
    padded = np.zeros((rows, count * block, count * block), bool)
    padded[:, :width, :width] = mask
    tiles = padded.reshape(rows, count, block, count, block).swapaxes(2, 3)
    # Blocks that are looked at hold something.
    assert np.array_equal(blocks.to_dense()[:, 0].bool().numpy(), tiles.any((3, 4)))
    assert blocks.shape == (rows, 1, width, width)
    full = np.zeros((rows, count, count), bool)
    for row, line in np.ndindex(rows, count):
        full[row, line, blocks.full_kv_indices[row, 0, line, : int(blocks.full_kv_num_blocks[row, 0, line])]] = True
    # Blocks that are looked at without a mask hold nothing but what is allowed.
    assert not (full & ~tiles.all((3, 4))).any()


@EAGER
@settings(max_examples=15)
@given(layouts())
def test_flex_attention_with_it_gives_what_dense_attention_gives(batch):
    query, key, value = (tensor.detach() for tensor in heads(batch))
    real = torch.from_numpy(batch.segment_ids != 0)[:, None, :, None].expand(-1, 4, -1, 8)
    found = flex_attention(query, key, value, block_mask=block_mask(batch, block=16), enable_gqa=True)
    expected = dense(query, key, value, torch.from_numpy(create_segment_attention_mask(batch.segment_ids))[:, None])
    assert found.isfinite().all()  # of padding too
    torch.testing.assert_close(found[real], expected[real], rtol=1e-5, atol=1e-5)


def test_a_block_mask_of_a_long_row_needs_no_memory_of_length_times_length():
    width = 65_536
    batch = layout([[1000] * 60 + [5000]], width)
    block_mask(layout([[3]], 3))  # what is imported on the way does not count
    tracemalloc.start()
    mask = block_mask(batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    tensors = [mask.kv_indices, mask.full_kv_indices, mask.q_indices, mask.full_q_indices]
    assert max(tensor.numel() for tensor in tensors) <= (width // 128) ** 2
    assert peak < 64 * (width // 128) ** 2  # bytes; length x length would be 64 times as much in single bits


# Models


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def gpt2():
    """Learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return GPT2LMHeadModel(config)


def mistral():
    """A sliding window that is shorter than most samples."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=7,
        )
    )


def learned(model, inputs, labels):
    logits = model(**inputs).logits
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")


def loss_and_gradients(model, batches, inputs=TensorBatch.inputs):
    model.zero_grad()
    total = 0.0
    for batch in batches:
        loss = learned(model, inputs(batch), batch.labels)
        loss.backward()
        total += loss.item()
    return total, {name: weight.grad.clone() for name, weight in model.named_parameters()}


def one_at_a_time(store):
    samples = [Sample(i, *store.sample(i)[:2]) for i in range(len(store))]
    return [TensorBatch.of(default_collate([sample], dtype=np.int64)) for sample in samples]


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    for name, gradient in expected[1].items():
        torch.testing.assert_close(
            found[1][name], gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max()), msg=name
        )


def packed_rows(plan, store):
    return [TensorBatch.of(collate(microbatch, store, dtype=np.int64)) for microbatch in plan.get_epoch(0)]


def with_mask(batch):
    mask = create_segment_attention_mask(batch.segment_ids.numpy(), kind="additive")
    return {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "attention_mask": torch.from_numpy(mask)[:, None],
    }


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """For models this small, threads wait for each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about itself
        pytest.importorskip("transformers").LlamaForCausalLM  # noqa: B018
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("make", [llama, gpt2, mistral])
@pytest.mark.parametrize("pad_id", [0, 5], ids=["pad", "pad is a real token"])
def test_packed_padded_and_one_at_a_time_give_the_same_loss_and_gradients(make, pad_id):
    store = make_store(40, pad_id=pad_id)
    assert pad_id in store.tokens
    packed, padded = make_plan(store, PACKED), make_plan(store, PADDED)
    model = make()
    # As transformers does it.
    expected = loss_and_gradients(model, one_at_a_time(store), lambda batch: {"input_ids": batch.input_ids})
    model.set_attn_implementation(register())
    assert_same(loss_and_gradients(model, loader(packed, store)), expected)
    assert_same(loss_and_gradients(model, loader(padded, store)), expected)
    assert_same(loss_and_gradients(model, loader(padded, store, flat=True)), expected)
    assert_same(loss_and_gradients(model, one_at_a_time(store)), expected)


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_other_attention_agrees_with_the_dense_mask_of_the_segments(make, attention):
    store = make_store(40)
    plan = make_plan(store, PACKED)
    model = make()
    expected = loss_and_gradients(model, one_at_a_time(store))
    model.set_attn_implementation(attention)
    assert_same(loss_and_gradients(model, packed_rows(plan, store), with_mask), expected)


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_segments_that_transformers_finds_by_positions_are_ours(make, attention):
    """It reads positions that restart, and knows nothing of boundaries; and it does so only without a cache, as
    `inputs()` says.
    """
    store = make_store(40)
    model = make()
    expected = loss_and_gradients(model, one_at_a_time(store))
    model.set_attn_implementation(attention)
    assert_same(loss_and_gradients(model, loader(make_plan(store, PACKED), store)), expected)


@EAGER
def test_flex_attention_of_transformers_takes_a_block_mask(monkeypatch):
    """Forward only, and without the compiler: that is what flex_attention can do on a CPU."""
    from transformers.integrations import flex_attention as integration

    def eager(query, key, value, training=False, **options):
        options.pop("kernel_options", None)
        return flex_attention(query, key, value, **options)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", eager)
    store = make_store(40)
    model = llama().eval()
    model.set_attn_implementation("flex_attention")
    for microbatch in make_plan(store, PACKED).get_epoch(0):
        batch = collate(microbatch, store, dtype=np.int64)
        tensors = TensorBatch.of(batch)
        inputs = {"input_ids": tensors.input_ids, "position_ids": tensors.position_ids}
        with torch.no_grad():
            found = model(**inputs, attention_mask=block_mask(batch, block=16)).logits
            model.set_attn_implementation("sdpa")
            expected = model(**with_mask(tensors)).logits
            model.set_attn_implementation("flex_attention")
        real = tensors.segment_ids != 0
        torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)


def test_registering_again_changes_nothing():
    assert register() == register() == "brim_segments"


def test_samples_without_tokens_go_through_a_model():
    batch = TensorBatch.of(
        default_collate([Sample("a", [], []), Sample("b", [], [])], dtype=np.int64, max_len=1).flat()
    )
    model = llama()
    model.set_attn_implementation(register())
    assert model(**batch.inputs()).logits.isfinite().all()
