import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";
import { HearthError, messageOf } from "../../core/index.ts";
import type { ReasoningTokens } from "../observer.ts";
import { PieceCache } from "./piece-cache.ts";
import { createPieceCutter, type PieceCutter } from "./piece-cutter.ts";
import type { TokenModelFiles } from "./protocol.ts";

type Fields = Readonly<Record<string, unknown>>;

/** A tokenizer and the template that makes one text of a conversation. */
export interface TokenModel {
  readonly hasTemplate: boolean;
  /** Whether the template wants a message's content in parts; else as one text. */
  readonly wantsParts: boolean;
  readonly partSeparator: string;
  readonly reasoning: ReasoningTokens | null;
  render(variables: Fields): string;
  encode(text: string, withSpecial: boolean): Uint32Array<ArrayBuffer>;
}

/** Throws CONFIG_INVALID where a file is missing or holds something else. */
export function loadTokenModel(files: TokenModelFiles, cacheTokens: number): TokenModel {
  const { tokenizer: folder, name } = files;
  const definition = readJson(join(folder, "tokenizer.json"));
  const config = readConfig(join(folder, "tokenizer_config.json"));
  let tokenizer: Tokenizer;
  try {
    tokenizer = new Tokenizer(definition, config);
  } catch (cause) {
    const what = `${folder}: the tokenizer of ${name} cannot be used: ${messageOf(cause)}`;
    throw new HearthError("CONFIG_INVALID", what, { cause });
  }
  const templates = readTemplates(files, config);
  const encoder = new Encoder(tokenizer, createPieceCutter(definition), cacheTokens);
  const sources = Object.values(templates);
  return {
    hasTemplate: sources.length > 0,
    wantsParts: sources.some((source) => WANTS_PARTS.test(source)),
    partSeparator: files.partSeparator,
    reasoning: reasoningOf(tokenizer, files.reasoning, sources),
    render: createRenderer(templates, specialTexts(config)),
    encode: (text, withSpecial) => encoder.encode(text, withSpecial),
  };
}

/** The template walks through a message's content, as vLLM finds it out. */
const WANTS_PARTS =
  /\bfor\s+\w+\s+in\s+(?:\w+(?:\.content|\[\s*['"]content['"]\s*\])|content)\s*(?:-?%\}|if\b|\|)/;

function readJson(path: string): Fields {
  try {
    const value: unknown = JSON.parse(readFileSync(path, "utf8"));
    if (typeof value === "object" && value !== null && !Array.isArray(value))
      return value as Fields;
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `${path}: ${messageOf(cause)}`, { cause });
  }
  throw new HearthError("CONFIG_INVALID", `${path} holds no JSON object`);
}

function readConfig(path: string): Fields {
  return existsSync(path) ? readJson(path) : {};
}

/** By name; a model's only one is `default`. */
function readTemplates(files: TokenModelFiles, config: Fields): Record<string, string> {
  const { tokenizer: folder, chatTemplate } = files;
  const beside = join(folder, "chat_template.jinja");
  const file = chatTemplate ?? (existsSync(beside) ? beside : null);
  if (file !== null) {
    try {
      return { default: readFileSync(file, "utf8") };
    } catch (cause) {
      throw new HearthError("CONFIG_INVALID", `${file}: ${messageOf(cause)}`, { cause });
    }
  }
  const inFile = join(folder, "chat_template.json");
  const own = existsSync(inFile) ? readJson(inFile).chat_template : config.chat_template;
  if (typeof own === "string") return { default: own };
  if (!Array.isArray(own)) return {};
  const named = own.filter((one) => typeof one?.template === "string");
  return Object.fromEntries(named.map((one) => [String(one.name), one.template as string]));
}

/** `bos_token` and its like, which a configuration has as a text or with options. */
function specialTexts(config: Fields): Record<string, string> {
  const texts: Record<string, string> = {};
  for (const name of ["bos_token", "eos_token", "pad_token", "unk_token"]) {
    const value = config[name];
    if (typeof value === "string") texts[name] = value;
    else if (typeof value === "object" && value !== null) {
      const { content } = value as { content?: unknown };
      if (typeof content === "string") texts[name] = content;
    }
  }
  return texts;
}

function createRenderer(
  sources: Readonly<Record<string, string>>,
  special: Readonly<Record<string, string>>,
): (variables: Fields) => string {
  const parsed = new Map<string, Template>();
  return (variables) => {
    const name = variables.tools != null && "tool_use" in sources ? "tool_use" : "default";
    const source = sources[name];
    if (source === undefined) throw new HearthError("UNSUPPORTED", "there is no chat template");
    const template = parsed.get(name) ?? new Template(source);
    parsed.set(name, template);
    return template.render({ ...special, ...variables });
  };
}

const KNOWN_REASONING = [
  ["<think>", "</think>"],
  ["<seed:think>", "</seed:think>"],
  ["[THINK]", "[/THINK]"],
] as const;

/** What the operator named, else a pair that the vocabulary has as tokens of their own. */
function reasoningOf(
  tokenizer: Tokenizer,
  named: TokenModelFiles["reasoning"],
  templates: readonly string[],
): ReasoningTokens | null {
  const isIn = (text: string) => templates.some((template) => template.includes(text));
  const pairs = KNOWN_REASONING.map(([start, end]) => ({ start, end }));
  const preferred = [...pairs.filter((pair) => isIn(pair.end)), ...pairs];
  for (const pair of named === null ? preferred : [named]) {
    const [start, end] = [tokenizer.token_to_id(pair.start), tokenizer.token_to_id(pair.end)];
    if (start !== undefined && end !== undefined) return { start, end };
  }
  return null;
}

/** Tokenises piece by piece where that is the same, and remembers the pieces. */
class Encoder {
  readonly #tokenizer: Tokenizer;
  readonly #cutter: PieceCutter | null;
  readonly #cache: PieceCache;

  constructor(tokenizer: Tokenizer, cutter: PieceCutter | null, cacheTokens: number) {
    [this.#tokenizer, this.#cutter] = [tokenizer, cutter];
    this.#cache = new PieceCache(cacheTokens);
  }

  encode(text: string, withSpecial: boolean): Uint32Array<ArrayBuffer> {
    const pieces = withSpecial || this.#cutter === null ? null : this.#cutter(text);
    if (pieces === null) {
      return checked(this.#tokenizer.encode(text, { add_special_tokens: withSpecial }).ids);
    }
    const lists = pieces.map((piece) => this.#piece(piece));
    const tokens = new Uint32Array(lists.reduce((sum, list) => sum + list.length, 0));
    let at = 0;
    for (const list of lists) {
      tokens.set(list, at);
      at += list.length;
    }
    return tokens;
  }

  #piece(piece: string): readonly number[] {
    const known = this.#cache.get(piece);
    if (known !== null) return known;
    const { ids } = this.#tokenizer.encode(piece, { add_special_tokens: false });
    checked(ids);
    this.#cache.put(piece, ids);
    return ids;
  }
}

/** A vocabulary without a token for what it does not know answers nothing for it. */
function checked(ids: readonly (number | undefined)[]): Uint32Array<ArrayBuffer> {
  if (ids.some((id) => id === undefined)) {
    throw new HearthError("UNSUPPORTED", "the vocabulary has no token for a part of the text");
  }
  return Uint32Array.from(ids as readonly number[]);
}
