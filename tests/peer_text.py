"""Whether llama.cpp says the same, greedily, with the built-in model; not part of the tests.

    python tests/peer_text.py MODEL.gguf --peer PYTHON [--turns N]

PYTHON is an interpreter that has llama-cpp-python. The turns are those of held-out dialogues, in both modes, with the
same history on both sides; the peer renders the file's template and splits the text by itself. Drafts are on here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from runtime.builtin.corpus.tour import DEFAULT_TOUR, read_tour
from runtime.builtin.evaluate import run
from runtime.builtin.held_out import cases
from runtime.builtin.runtime_answers import RuntimeAnswers

PEER = """
import json, sys
import llama_cpp, numpy
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
asked = json.load(sys.stdin)
defaults = llama_cpp.llama_model_default_params
def plain():
    params = defaults()
    params.use_extra_bufts = False  # its AMX buffers crash on matrices as small as these
    return params
llama_cpp.llama_cpp.llama_model_default_params = plain
model = llama_cpp.Llama(sys.argv[1], n_threads=1, n_threads_batch=1, n_ctx=4096, logits_all=False, verbose=False)
template = Jinja2ChatFormatter(model.metadata["tokenizer.chat_template"], eos_token="<|im_end|>", bos_token="")
end, size = model.token_eos(), model.n_vocab()
for messages, thinking in asked:
    prompt = template(messages=messages, enable_thinking=thinking).prompt
    ids = model.tokenize(prompt.encode(), add_bos=False, special=True)
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.ctx), True)
    model.reset()
    model.eval(ids)
    made = []
    while len(made) < 320:
        token = int(numpy.argmax(numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(model.ctx, -1), (size,))))
        if token == end:
            break
        made.append(token)
        model.eval([token])
    print(json.dumps(model.detokenize(made, special=True).decode()), flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--turns", type=int, default=50)
    options = parser.parse_args()
    tour = read_tour(DEFAULT_TOUR)
    chosen = cases(tour)
    outcomes = run(RuntimeAnswers(options.model), chosen[:: max(1, len(chosen) // options.turns)], tour)
    asked, ours = [], []
    for outcome in outcomes:
        messages: list[dict[str, str]] = []
        for user, made in zip(outcome.case.users, outcome.replies, strict=True):
            messages.append({"role": "user", "content": user})
            asked.append(([*messages], outcome.case.thinking))
            ours.append((made.thought, made.reply))
            messages.append({"role": "assistant", "content": made.reply, "reasoning_content": made.thought})
    done = subprocess.run(
        [options.peer, "-c", PEER, str(options.model)],
        input=json.dumps(asked),
        check=True,
        capture_output=True,
        text=True,
    )
    different = 0
    for (messages, thinking), own, line in zip(asked, ours, done.stdout.splitlines(), strict=True):
        thought, _, answer = json.loads(line).rpartition("</think>") if thinking else ("", "", json.loads(line))
        theirs = (thought.strip(), answer.strip())
        if theirs != own:
            different += 1
            print(f"> {messages[-1]['content']}\n  here  {own!r}\n  there {theirs!r}")
    print(f"{len(asked) - different} of {len(asked)} turns are the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
