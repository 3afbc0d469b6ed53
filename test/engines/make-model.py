"""Makes a checkpoint with random weights and a tokenizer, without a download: a Llama by default.

Runs in an engine's virtual environment (torch, transformers, tokenizers). Equal options give equal
files. `--attention-gain` scales the query weights: attention then picks single tokens of the
prompt, and one wrong block of KV changes the output.
"""

import argparse
import json
import os
import random

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
SYLLABLES = ["ka", "to", "mi", "ren", "sol", "vu", "pel", "dra", "ne", "shi", "or", "lam", "que"]


def corpus(seed, lines):
    """Sentences of made-up words; common words come more often, as in a language."""
    chance = random.Random(seed)
    words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 3))) for _ in range(4000)]
    weights = [1.0 / (rank + 10) for rank in range(len(words))]
    for _ in range(lines):
        yield " ".join(chance.choices(words, weights, k=chance.randint(4, 24))) + ".\n"


def make_tokenizer(folder, seed, vocabulary):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed, 4000), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|begin|>",
        eos_token="<|end|>",
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def make_weights(folder, options):
    import torch

    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    make = {"llama": make_llama, "deepseek-v2": make_deepseek}[options.architecture]
    make(folder, options)
    if options.lora_rank:
        make_adapter(os.path.join(folder, "adapter"), options)


def make_deepseek(folder, options):
    """Multi-head latent attention, with the sizes that vLLM's kernels for CPUs are compiled for."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        hidden_size=options.hidden,
        intermediate_size=options.intermediate or options.hidden * 2,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.heads,
        vocab_size=options.vocabulary,
        max_position_embeddings=options.positions,
        initializer_range=options.initializer_range,
        first_k_dense_replace=options.layers,
        n_routed_experts=4,
        num_experts_per_tok=2,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    DeepseekV2ForCausalLM(config).to(getattr(torch, options.dtype)).save_pretrained(folder)


def make_adapter(folder, options):
    """A LoRA adapter of the query and value projections, in the format of PEFT."""
    import torch
    from safetensors.torch import save_file

    os.makedirs(folder, exist_ok=True)
    rank, size = options.lora_rank, options.hidden // options.heads
    out = {"q_proj": options.hidden, "v_proj": options.kv_heads * size}
    tensors = {}
    for layer in range(options.layers):
        for name, rows in out.items():
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{path}.lora_A.weight"] = torch.randn(rank, options.hidden) * 0.1
            tensors[f"{path}.lora_B.weight"] = torch.randn(rows, rank) * 0.1
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(out),
    }
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def make_llama(folder, options):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=options.intermediate or options.hidden * 2,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=options.hidden // options.heads,
        vocab_size=options.vocabulary,
        max_position_embeddings=options.positions,
        initializer_range=options.initializer_range,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    if options.no_weights:
        config.architectures = ["LlamaForCausalLM"]
        config.dtype = options.dtype
        config.save_pretrained(folder)
        return
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(options.attention_gain)
    model.to(getattr(torch, options.dtype)).save_pretrained(folder)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--architecture", default="llama", help="llama or deepseek-v2")
    parser.add_argument("--lora-rank", type=int, default=0, help="also makes an adapter")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=0, help="0: twice the hidden size")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--positions", type=int, default=32768)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--initializer-range", type=float, default=0.08)
    parser.add_argument("--attention-gain", type=float, default=3.0)
    parser.add_argument("--no-weights", action="store_true", help="for --load-format dummy")
    return parser.parse_args()


def main():
    options = parse()
    os.makedirs(options.folder, exist_ok=True)
    length = make_tokenizer(options.folder, options.seed, min(options.vocabulary, 2048))
    if length > options.vocabulary:
        raise SystemExit(f"the tokenizer has {length} tokens, more than {options.vocabulary}")
    make_weights(options.folder, options)
    with open(os.path.join(options.folder, "options.json"), "w", encoding="utf-8") as file:
        kept = {name: value for name, value in vars(options).items() if name != "folder"}
        json.dump(kept, file, indent=2, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()
