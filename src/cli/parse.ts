import { parseArgs } from "node:util";
import { HearthError, nearestWord, placeholderOf, type Read, readWord } from "../core/index.ts";
import { type ArgumentTable, type Flag, type FlagTable, flagName } from "./command.ts";

export interface Takes {
  readonly flags: FlagTable;
  readonly arguments: ArgumentTable;
}

export type ParsedWords =
  | { readonly kind: "help" }
  | {
      readonly kind: "values";
      readonly flags: Readonly<Record<string, unknown>>;
      readonly arguments: Readonly<Record<string, unknown>>;
    };

/** The flags on the command line: for each name its texts in order, or true for a switch. */
type Given = Map<string, (string | true)[]>;

const WORDS_MAX = 4096;

/**
 * Parses the words after a command's name: `--flag value`, `--flag=value`, switches, arguments in
 * any position, and `--`, after which all words are arguments. Throws USAGE with a suggestion.
 */
export function parseWords(words: readonly string[], takes: Takes): ParsedWords {
  if (words.length > WORDS_MAX) throw new HearthError("USAGE", `more than ${WORDS_MAX} words`);
  const names = new Map(Object.keys(takes.flags).map((name) => [flagName(name), name]));
  const options = Object.fromEntries(
    [...names].map(([flag, name]) => {
      const type = takes.flags[name].kind === null ? ("boolean" as const) : ("string" as const);
      return [flag.slice(2), { type, multiple: true }];
    }),
  );
  const args = [...words];
  const parsed = parseArgs({ args, options, strict: false, allowPositionals: true, tokens: true });
  const given: Given = new Map();
  const plain: string[] = [];
  let last = -1;
  for (const token of parsed.tokens) {
    const { kind, index } = token;
    if (kind === "positional") plain.push(token.value);
    if (kind !== "option" || index === last) continue;
    last = index;
    const word = words[index];
    if (word === "--help" || word === "-h") return { kind: "help" };
    // A negative number is an argument, although the parser reads it as a group of short flags.
    if (/^-[0-9]/.test(word)) plain.push(word);
    else takeFlag(token, takes.flags, names, given);
  }
  return {
    kind: "values",
    flags: flagValues(takes.flags, given),
    arguments: argumentValues(takes.arguments, plain),
  };
}

interface FlagToken {
  readonly rawName: string;
  readonly value?: string | undefined;
  readonly inlineValue?: boolean | undefined;
}

function takeFlag(
  { rawName: shown, value, inlineValue }: FlagToken,
  flags: FlagTable,
  names: ReadonlyMap<string, string>,
  given: Given,
): void {
  const name = names.get(shown);
  if (name === undefined) throw unknownFlag(shown, [...names.keys(), "--help"]);
  const { kind, repeated } = flags[name];
  const before = given.get(name) ?? [];
  if (before.length > 0 && !repeated) throw new HearthError("USAGE", `${shown} is given twice`);
  given.set(name, before);
  if (kind === null) {
    if (value !== undefined) throw new HearthError("USAGE", `${shown} takes no value`);
    before.push(true);
    return;
  }
  if (value === undefined || (inlineValue !== true && value.startsWith("--"))) {
    throw new HearthError("USAGE", `${shown} needs a value: ${shown} ${placeholderOf(kind)}`);
  }
  before.push(value);
}

function unknownFlag(shown: string, known: readonly string[]): HearthError {
  const meant = nearestWord(shown, known);
  return new HearthError("USAGE", `unknown flag ${shown}`, {
    fix: meant === null ? `flags here are ${known.join(", ")}` : `did you mean ${meant}`,
  });
}

function flagValues(flags: FlagTable, given: Given): Record<string, unknown> {
  const values: Record<string, unknown> = {};
  for (const [name, flag] of Object.entries(flags)) {
    const texts = given.get(name) ?? [];
    const shown = flagName(name);
    if (texts.length > 0) values[name] = readFlag(shown, flag, texts);
    else if (flag.defaultValue !== null) values[name] = flag.defaultValue.value;
    else throw new HearthError("USAGE", `${shown} ${placeholderOf(flag.kind!)} is missing`);
  }
  return values;
}

function readFlag(shown: string, flag: Flag<unknown>, texts: readonly (string | true)[]): unknown {
  const values = texts.map((text) =>
    text === true || flag.kind === null ? true : accepted(shown, readWord(flag.kind, text)),
  );
  return flag.repeated ? values : values[0];
}

/** Returns the parsed value. Throws USAGE if the flag or argument does not accept it. */
function accepted(shown: string, read: Read<unknown>): unknown {
  if (read.ok) return read.value;
  throw new HearthError("USAGE", `${shown} ${read.what}`, { fix: read.instead });
}

function argumentValues(table: ArgumentTable, plain: readonly string[]): Record<string, unknown> {
  const values: Record<string, unknown> = {};
  let at = 0;
  for (const [name, { kind, presence }] of Object.entries(table)) {
    const shown = placeholderOf(kind);
    const read = (text: string) => accepted(shown, readWord(kind, text));
    if (presence === "rest") {
      values[name] = plain.slice(at).map(read);
      at = plain.length;
    } else if (at < plain.length) {
      values[name] = read(plain[at++]);
    } else if (presence === "optional") {
      values[name] = null;
    } else {
      throw new HearthError("USAGE", `${shown} is missing`);
    }
  }
  if (at < plain.length) {
    throw new HearthError("USAGE", `one argument too many: "${plain[at].slice(0, 100)}"`);
  }
  return values;
}
