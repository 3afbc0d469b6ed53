import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { type Clock, HearthError, messageOf, systemClock } from "../../../core/index.ts";
import type { ReasoningTokens } from "../observer.ts";
import { createPieceCutter, type EncodeOptions, Encoder } from "./encoder.ts";
import { Template } from "./jinja/index.ts";
import type { TokenModelFiles } from "./protocol.ts";
import { readJson as readPython, type Value } from "./python/index.ts";

type Fields = Readonly<Record<string, unknown>>;

export interface ChatTemplate {
  readonly source: string;
  /** True if the template expects a message's content as a list of parts, false if as one text. */
  readonly wantsParts: boolean;
  render(variables: readonly (readonly [string, Value])[]): string;
}

/** A tokenizer, and the templates that render a conversation to text. */
export interface TokenModel {
  readonly partSeparator: string;
  readonly reasoning: ReasoningTokens | null;
  /** Variables from the operator's settings, which every template receives. */
  readonly templateKwargs: ReadonlyMap<string, Value>;
  /** Returns the template to use. Some models have a second template for requests with tools. */
  templateFor(hasTools: boolean): ChatTemplate | null;
  encode(text: string, options: EncodeOptions): Uint32Array<ArrayBuffer>;
}

/** Loads the files of a model. Throws CONFIG_INVALID if a file is missing or invalid. */
export function loadTokenModel(
  files: TokenModelFiles,
  cacheTokens: number,
  clock: Pick<Clock, "wallMs">,
): TokenModel {
  const { tokenizer: folder, name } = files;
  const definition = readJson(join(folder, "tokenizer.json"));
  const config = readConfig(folder);
  let tokenizer: Tokenizer;
  try {
    tokenizer = new Tokenizer(definition, config);
  } catch (cause) {
    const what = `${folder}: the tokenizer of ${name} cannot be used: ${messageOf(cause)}`;
    throw new HearthError("CONFIG_INVALID", what, { cause });
  }
  const setting = { special: specialTexts(config), now: () => new Date(clock.wallMs()) };
  const read = readTemplates(files, config);
  const templates = new Map(read.map((one) => [one.name, compiled(one, setting)]));
  const encoder = new Encoder(tokenizer, createPieceCutter(definition), cacheTokens);
  const sources = read.map(({ source }) => source);
  return {
    partSeparator: files.partSeparator,
    reasoning: reasoningOf(tokenizer, files.reasoning, sources),
    templateKwargs: readKwargs(files),
    templateFor: (hasTools) =>
      (hasTools ? templates.get("tool_use") : null) ?? templates.get("default") ?? null,
    encode: (text, options) => encoder.encode(text, options),
  };
}

/**
 * Checks the files of a model by loading them. Throws CONFIG_INVALID if a file is missing or
 * invalid.
 */
export function checkTokenModel(files: TokenModelFiles): void {
  loadTokenModel(files, 0, systemClock);
}

function readKwargs({ name, templateKwargs }: TokenModelFiles): ReadonlyMap<string, Value> {
  const kwargs = readPython(templateKwargs ?? "{}");
  if (kwargs instanceof Map) return kwargs as ReadonlyMap<string, Value>;
  const what = `default_chat_template_kwargs of ${name} is not a JSON object`;
  throw new HearthError("CONFIG_INVALID", what);
}

function readJson(path: string): Fields {
  try {
    const value: unknown = JSON.parse(readFileSync(path, "utf8"));
    if (typeof value === "object" && value !== null && !Array.isArray(value))
      return value as Fields;
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `${path}: ${messageOf(cause)}`, { cause });
  }
  throw new HearthError("CONFIG_INVALID", `${path} does not contain a JSON object`);
}

/**
 * Reads the tokenizer's configuration. Adds the special tokens, which older models keep in a
 * separate file.
 */
function readConfig(folder: string): Fields {
  const [config, special] = ["tokenizer_config.json", "special_tokens_map.json"].map((name) => {
    const file = join(folder, name);
    return existsSync(file) ? readJson(file) : {};
  }) as [Fields, Fields];
  return "added_tokens_decoder" in config ? config : { ...config, ...special };
}

interface TemplateSource {
  /** Name of the template. `default` if the model has only one. */
  readonly name: string;
  readonly where: string;
  readonly source: string;
}

function readTemplates(files: TokenModelFiles, config: Fields): TemplateSource[] {
  const { tokenizer: folder, chatTemplate } = files;
  const beside = join(folder, "chat_template.jinja");
  const file = chatTemplate ?? (existsSync(beside) ? beside : null);
  if (file !== null) return [{ name: "default", where: file, source: readText(file) }];
  const inFile = join(folder, "chat_template.json");
  const isApart = existsSync(inFile);
  const own = isApart ? readJson(inFile).chat_template : config.chat_template;
  const where = isApart ? inFile : join(folder, "tokenizer_config.json");
  if (typeof own === "string") return [{ name: "default", where, source: own }];
  if (!Array.isArray(own)) return [];
  const named = own.filter((one) => typeof one?.template === "string");
  return named.map((one) => {
    const name = String(one.name);
    return { name, where: `${where}, template ${name}`, source: String(one.template) };
  });
}

function readText(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `${file}: ${messageOf(cause)}`, { cause });
  }
}

/**
 * Compiles a template. Throws CONFIG_INVALID if it is invalid, so that an error appears at start
 * and not with each prompt.
 */
function compiled(
  { where, source }: TemplateSource,
  { special, now }: { special: readonly (readonly [string, Value])[]; now: () => Date },
): ChatTemplate {
  let template: Template;
  try {
    template = new Template(source);
  } catch (cause) {
    const what = `${where}: invalid chat template: ${messageOf(cause)}`;
    throw new HearthError("CONFIG_INVALID", what, { cause });
  }
  return {
    source,
    wantsParts: template.wantsParts,
    render: (variables) => template.render([...special, ...variables], { now }),
  };
}

/**
 * Returns the special tokens, such as `bos_token`, by name. The configuration gives each as a text
 * or an object.
 */
function specialTexts(config: Fields): [string, Value][] {
  const more = config.extra_special_tokens;
  const named = Object.entries(config).filter(([name]) => name.endsWith("_token"));
  const all = [...named, ...Object.entries(isFields(more) ? more : {})];
  return all.flatMap(([name, value]) => {
    const text = isFields(value) ? value.content : value;
    return typeof text === "string" ? [[name, text] as [string, Value]] : [];
  });
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const KNOWN_REASONING = [
  ["<think>", "</think>"],
  ["<seed:think>", "</seed:think>"],
  ["[THINK]", "[/THINK]"],
] as const;

/**
 * Returns the ids of the tokens that open and close reasoning: those that the operator named,
 * otherwise a known pair that is in the vocabulary. Null if there is none.
 */
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
