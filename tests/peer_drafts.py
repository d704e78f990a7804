"""How many drafts are accepted here and by llama.cpp, on the same conversation; not part of the tests.

    python tests/peer_drafts.py MODEL.gguf --peer PYTHON [--ops COLUMN] [--thinking] [--max-tokens N]

PYTHON is an interpreter that has llama-cpp-python. The prompts are those of the benchmark of drafts, the replies
greedy. llama.cpp reads the same prompts, replies by itself, and drafts with its MTP context: a row of that is a token
together with the trunk's hidden state of the token before, or in a longer draft with the MTP block's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from runtime.bench_draft import PROMPTS
from runtime.engine import Done, NewToken, Request
from runtime.loading import open_chat_model
from runtime.protocol import Load, Message
from runtime.sampling import SamplingParams
from runtime.tokenizer import StreamDecoder

LENGTHS = (1, 2, 3)

PEER = """
import ctypes, json, sys
import numpy as np
import llama_cpp as L
from llama_cpp import llama_cpp_ext as X
path, stops, limit, lengths, prompts = json.load(sys.stdin)
quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
wanted = L.llama_model_default_params()
wanted.load_mtp, wanted.use_extra_bufts = True, False  # repacked Q8_0 ends some builds with a fault
model = L.llama_model_load_from_file(path.encode(), wanted)
vocabulary = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
width = L.llama_model_n_embd(model)

def context(other=None):
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = 8192, 8192, 8192, 1, 1
    if other:
        p.ctx_type, p.ctx_other = L.LLAMA_CONTEXT_TYPE_MTP, other
    made = L.llama_init_from_model(model, p)
    X.llama_set_embeddings_nextn(made, True, False)
    return made

def read(ctx, tokens, start, hidden=None):
    batch = L.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 1
        batch.seq_id[i][0] = 0
    if hidden is not None:
        states = np.ascontiguousarray(hidden, dtype=np.float32)
        batch.embd = states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    assert L.llama_decode(ctx, batch) == 0
    rows = [X.llama_get_embeddings_nextn_ith(ctx, i) for i in range(len(tokens))]
    found = [np.ctypeslib.as_array(row, (width,)).copy() for row in rows]
    best = int(np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, len(tokens) - 1), (vocabulary,)).argmax())
    batch.embd = ctypes.POINTER(ctypes.c_float)()
    L.llama_batch_free(batch)
    return found, best

trunk = context()
block = context(trunk)
replies, counts = [], {k: [0, 0] for k in lengths}
for prompt in prompts:
    L.llama_memory_clear(L.llama_get_memory(trunk), True)
    hidden, token = read(trunk, prompt, 0)
    reply = [token]
    while token not in stops and len(reply) < limit:
        more, token = read(trunk, [token], len(hidden))
        hidden += more
        reply.append(token)
    replies.append(reply)
    ids = prompt + reply
    for k in lengths:
        L.llama_memory_clear(L.llama_get_memory(block), True)
        fed, said = 1, 1
        while said < len(reply):
            count, last = min(k, limit - said - 1), len(prompt) + said - 1
            if not count:
                break
            more, draft = read(block, ids[fed : last + 1], fed, np.stack(hidden[fed - 1 : last]))
            drafts, fed = [draft], last + 1
            while len(drafts) < count:
                more, draft = read(block, [draft], last + len(drafts), more[-1][None])
                drafts.append(draft)
            L.llama_memory_seq_rm(L.llama_get_memory(block), 0, fed, -1)
            right = 0
            while right < count and said + right < len(reply) and drafts[right] == reply[said + right]:
                right += 1
            counts[k][0] += count
            counts[k][1] += right
            said += right + 1
print(json.dumps([replies, list(counts.values())]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--ops", choices=["auto", "reference", "cpu"], default="auto")
    parser.add_argument("--thinking", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args()
    chat, _, _ = open_chat_model(Load(str(options.model), ops=options.ops), lambda done, total: None)
    tokenizer, template = chat._tokenizer, chat._template
    messages: list[Message] = []
    prompts, replies = [], []
    counts = {k: [0, 0] for k in LENGTHS}
    for question in PROMPTS:
        messages.append(Message("user", question))
        prompt = template.render(tuple(messages), thinking=options.thinking).ids
        for k in LENGTHS:
            request = Request(prompt, SamplingParams(temperature=0), tokenizer.stop_ids, options.max_tokens, drafts=k)
            *steps, done = chat.engine.generate(f"{k}", request, lambda: False)
            assert isinstance(done, Done)
            counts[k][0] += done.drafted
            counts[k][1] += done.accepted
        reply = [step.id for step in steps if isinstance(step, NewToken)]
        prompts.append(prompt)
        replies.append(reply)
        decoder = StreamDecoder(tokenizer)
        text = "".join(decoder.push(id) for id in reply if id not in tokenizer.stop_ids) + decoder.finish()
        thought, _, answer = text.rpartition("</think>")
        messages.append(Message("assistant", answer.strip(), thought.strip()))
    words = json.dumps([str(options.model), list(tokenizer.stop_ids), options.max_tokens, LENGTHS, prompts])
    done = subprocess.run([options.peer, "-c", PEER], input=words, check=True, stdout=subprocess.PIPE, text=True)
    their_replies, their_counts = json.loads(done.stdout.splitlines()[-1])
    print(f"{sum(map(list.__eq__, replies, their_replies))} of {len(replies)} replies are the same")
    for k, (theirs, accepted) in zip(LENGTHS, their_counts, strict=True):
        own, other = counts[k][1] / counts[k][0], accepted / theirs
        print(f"drafts of {k}: {own:.3f} accepted   llama.cpp {other:.3f}   {own - other:+.3f}")


if __name__ == "__main__":
    main()
