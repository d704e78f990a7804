"""Whether a model fits on this machine, where, and how fast it will be, before it is loaded or even downloaded.

What a load takes, in bytes:

    base      the interpreter, torch, native functions and what makes them (153 MB), and the family's vocabulary
              (80 MB), as measured; what has a smaller one is a file smaller than that
    weights   the tensors as they are packed, which is the file without its header, and 0.5 % of large pages not filled
    kv        2 · attention layers · KV heads · head dim · 2 per token (f32: 4; q8: 1, and a scale of 4 for each head)
    mtp       the same of the MTP block's one layer
    state     value heads · 128 · 128 · 4 of each DeltaNet layer, and its convolution's window
    steps     what a decode step leaves, twice: the states again, with the inputs of its rows; it is let go while a
              prompt is read, and the state is there twice less while tokens are decoded
    work      what the rows of the longest piece of prefill are at once, see `work`

A token is decoded in the time in which the weights that it needs, its keys and values and its states come from memory;
said is the speed of a conversation that begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.hub import names, peek
from runtime.hub.protocol import Fit, Machine, Place
from runtime.models.config import ModelConfig

DEFAULT_CONTEXT = 32_768  # tokens
BLOCK = 256  # tokens of keys and values that are allocated at once
ROWS = 5  # of a decode step at most
VOCABULARY = 248_320
_HEADER = 11_000_000  # bytes of vocabulary and merges in a file of this family
_BASE, _VOCABULARY = 153_000_000, 80_000_000
_FILLED = 1.005
_UNEVEN = 1.2  # rooms are not of the very size of what is in them
_BEGINNING = 1024  # tokens
COPIES = 4  # of the recurrent state: the live one, the next one, and two places to come back to
_SHARE = 0.9  # of the memory that models may take
_EFFICIENCY = 0.95  # of the bandwidth, at decoding: the rest goes to what reads little
_TIED = 2560  # hidden dimensions up to which the family's head is its embeddings


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes."""

    base: int
    weights: int
    kv: int
    mtp: int
    state: int
    steps: int
    work: int

    @property
    def total(self) -> int:
        decoding = self.state * (COPIES - 2) // COPIES + self.steps
        return self.base + self.weights + self.kv + self.mtp + max(self.state + self.work, decoding)


def read(path: Path) -> tuple[ModelConfig, int]:
    """The shape of a model on disk, and the bytes of its file. Raises OSError, NotGGUFError, ModelError."""
    name = names.parse(path.name)
    parts = [path]
    if name.count > 1:
        numbers = range(1, name.count + 1)
        parts = [path.with_name(f"{name.stem}-{number:05}-of-{name.count:05}.gguf") for number in numbers]
    return ModelConfig.from_metadata(peek.read(path)), sum(part.stat().st_size for part in parts)


def memory(config: ModelConfig, file_bytes: int, context: int, kv_type: str = "auto") -> Need:
    """What the model takes with a conversation of `context` tokens."""
    per_layer = layer_kv(config, context, kv_type)
    delta = config.delta
    deltas = config.layers - config.attention_layers
    window = 4 * (delta.conv_kernel - 1) * delta.conv_channels
    matrices = deltas * 4 * delta.value_heads * delta.head_dim**2
    state = matrices + deltas * window
    rows = min(config.prefill_chunk, context)
    header, vocabulary = (_HEADER, _VOCABULARY) if file_bytes > _HEADER else (0, 0)
    return Need(
        base=_BASE + vocabulary,
        weights=round(_FILLED * (file_bytes - header)),
        kv=config.attention_layers * per_layer,
        mtp=config.mtp_layers * per_layer,
        state=COPIES * state,
        steps=matrices + 2 * deltas * (window + 8 * ROWS * (delta.conv_channels + delta.value_heads)),
        work=rows * work(config),
    )


def layer_kv(config: ModelConfig, context: int, kv_type: str = "auto") -> int:
    """Bytes of keys and values of an attention layer."""
    per_head = config.head_dim + 4 if kv_type == "q8" else (4 if kv_type == "f32" else 2) * config.head_dim
    return 2 * config.kv_heads * per_head * (-(-context // BLOCK) * BLOCK)


def work(config: ModelConfig) -> int:
    """Bytes that a row of prefill takes while it goes through the layers.

    That is what there is of a row where that is most, in one kind of layer or another: its residual and norms, what
    comes out of a projection, and what is made of that. What one layer leaves is room for the next
    (`kernels.cpu.memory`), but not to the byte.
    """
    h, delta, q, k = config.hidden, config.delta, config.heads * config.head_dim, config.kv_heads * config.head_dim
    recurrent = 2 * h + 3 * delta.conv_channels + 2 * delta.value_dim  # qkv, mixed, inputs; z, o
    attention = 2 * h + 5 * q + 2 * k  # query and gate, query by itself, its sums, the output; keys, values
    # Of an expert: a copy of the row, gate and up, two products. Else gate, up and their product. Beside these the
    # residual before and after, their norms, and the mixer's output.
    used = config.moe.used * (3 * h + 2 * config.moe.ff) if config.moe else 3 * config.ff
    return round(4 * _UNEVEN * max(recurrent, attention, 5 * h + used))


def decode_bytes(config: ModelConfig, file_bytes: int, context: int, kv_type: str = "auto") -> float:
    """Bytes that come from memory for one token after `context` others; the state is read and written."""
    need = memory(config, file_bytes, context, kv_type)
    used, total = parameters(config)
    return need.weights * used / total + need.kv + 2 * need.state / COPIES


def parameters(config: ModelConfig) -> tuple[float, float]:
    """How many a token uses, and how many there are."""
    h, delta = config.hidden, config.delta
    attention = h * config.head_dim * (3 * config.heads + 2 * config.kv_heads)
    recurrent = h * (delta.conv_channels + 2 * delta.value_dim + 2 * delta.value_heads)
    if config.moe:
        expert, shared = 3 * h * config.moe.ff, 3 * h * config.moe.shared_ff
        ff, ff_used = config.moe.experts * expert + shared, config.moe.used * expert + shared
    else:
        ff = ff_used = 3 * h * config.ff
    attentions = config.attention_layers
    mixers = attentions * attention + (config.layers - attentions) * recurrent
    head = VOCABULARY * h
    embeddings = 0 if h <= _TIED else head  # one row of it is read
    mtp = config.mtp_layers * (attention + ff + 2 * h * h)
    return mixers + config.layers * ff_used + head, mixers + config.layers * ff + head + embeddings + mtp


def verdict(
    config: ModelConfig, file_bytes: int, machine: Machine, context: int | None = None, kv_type: str = "auto"
) -> Fit:
    """For a model of this shape, and a file of this size, here or not."""
    context = min(context or DEFAULT_CONTEXT, config.trained_context)
    need = memory(config, file_bytes, context, kv_type).total
    gpus = [gpu.memory for gpu in machine.gpus if gpu.used]
    one, room = max(gpus, default=0), round(_SHARE * machine.memory)
    gpu = one if need <= round(_SHARE * one) else sum(gpus)  # which share the layers
    on = "the GPU" if gpu == one else f"{len(gpus)} GPUs"
    place = _place(need, room, round(_SHARE * gpu))
    tokens = None
    if place == "cpu" and machine.bandwidth:
        tokens = _EFFICIENCY * machine.bandwidth / decode_bytes(config, file_bytes, min(context, _BEGINNING), kv_type)
    speed = f", about {tokens:.0f} tokens/s" if tokens and tokens >= 1.5 else ""
    if tokens and tokens < 1.5:
        speed = f", about {tokens:.1f} tokens/s"
    amount = f"{need / 1e9:.1f} GB with {context:,} tokens of context"
    sentence = {
        "gpu": f"fits on {on}: {amount}",
        "split": f"fits partly on {on}, the rest in memory: {amount}",
        "cpu": f"fits: {amount}{speed}",
        "no": f"does not fit: {amount}, of {machine.memory / 1e9:.1f} GB",
    }[place]
    if place == "cpu" and need > machine.available:
        sentence += f"; {machine.available / 1e9:.1f} GB are free now, so close something first"
    return Fit(place, need, gpu if place == "gpu" else room, tokens, sentence)


def _place(need: int, room: int, gpu: int) -> Place:
    if gpu and need <= gpu:
        return "gpu"
    if need <= room:
        return "split" if gpu else "cpu"
    return "split" if gpu and need <= room + gpu else "no"
