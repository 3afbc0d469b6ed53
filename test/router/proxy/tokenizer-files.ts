import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** GPT-2's letters of bytes: printable bytes as themselves, others from U+0100 on. */
export function byteLetters(): string[] {
  const letters: string[] = [];
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const isPrintable =
      (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    letters.push(String.fromCodePoint(isPrintable ? byte : next++));
  }
  return letters;
}

const WORDS = ["the", "and", "tion", "er", "in", "re", "on", "at", "en", "Ġthe", "Ġa", "Ġw"];

export const SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"];

export const CHAT_TEMPLATE = `{%- if tools %}
{{- '<|im_start|>tools' }}
{%- for tool in tools %}
{{- '\\n' + (tool | tojson) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' + call.function.name + ' ' + (call.function.arguments | tojson) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking %}
{{- '<think>\\n' }}
{%- endif %}
{%- endif %}`;

/** A template that iterates over message parts, as those of multimodal models do. */
export const PARTS_TEMPLATE = `{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- for part in message.content %}
{{- '[' + part.text + ']' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}`;

/** A realistic tokenizer: byte-level BPE with a few merges and special tokens. */
export function tokenizerJson(): Record<string, unknown> {
  const vocab = new Map<string, number>();
  for (const letter of byteLetters()) vocab.set(letter, vocab.size);
  const merges: string[] = [];
  for (const word of WORDS) {
    let made = word[0]!;
    for (const letter of word.slice(1)) {
      const merged = made + letter;
      if (!vocab.has(merged)) {
        merges.push(`${made} ${letter}`);
        vocab.set(merged, vocab.size);
      }
      made = merged;
    }
  }
  const base = vocab.size;
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: SPECIAL.map((content, i) => ({
      id: base + i,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: {
      type: "ByteLevel",
      add_prefix_space: false,
      trim_offsets: true,
      use_regex: true,
    },
    post_processor: {
      type: "TemplateProcessing",
      single: [
        { SpecialToken: { id: "<|endoftext|>", type_id: 0 } },
        { Sequence: { id: "A", type_id: 0 } },
      ],
      pair: [{ Sequence: { id: "A", type_id: 0 } }, { Sequence: { id: "B", type_id: 1 } }],
      special_tokens: {
        "<|endoftext|>": { id: "<|endoftext|>", ids: [base], tokens: ["<|endoftext|>"] },
      },
    },
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      vocab: Object.fromEntries(vocab),
      merges,
    },
  };
}

export function tokenizerConfig(): Record<string, unknown> {
  return {
    tokenizer_class: "PreTrainedTokenizerFast",
    bos_token: { content: "<|endoftext|>", lstrip: false, rstrip: false },
    eos_token: "<|im_end|>",
    clean_up_tokenization_spaces: false,
    model_max_length: 32_768,
  };
}

/** Writes a model's files into a folder of their own and returns it. */
export function writeTokenizer(under: string, template: string | null = CHAT_TEMPLATE): string {
  const folder = join(under, "model");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizerJson()));
  const config = template === null ? {} : { chat_template: template };
  const text = JSON.stringify({ ...tokenizerConfig(), ...config });
  writeFileSync(join(folder, "tokenizer_config.json"), text);
  return folder;
}
