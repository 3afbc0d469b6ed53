import { HearthError, nearestWord } from "../core/index.ts";
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

/** Given flags: each text in order, or true for a switch. */
type Given = Map<string, (string | true)[]>;

const WORDS_MAX = 4096;

/**
 * Parses the words after a command's name: `--flag value`, `--flag=value`, switches, arguments in
 * any position, and `--`, after which all words are arguments. Throws USAGE with a suggestion.
 */
export function parseWords(words: readonly string[], takes: Takes): ParsedWords {
  if (words.length > WORDS_MAX) throw new HearthError("USAGE", `more than ${WORDS_MAX} words`);
  const given: Given = new Map();
  const plain: string[] = [];
  const names = new Map(Object.keys(takes.flags).map((name) => [flagName(name), name]));
  for (let at = 0; at < words.length; at++) {
    const word = words[at]!;
    if (word === "--") {
      plain.push(...words.slice(at + 1));
      break;
    }
    if (word === "--help" || word === "-h") return { kind: "help" };
    if (!/^-[^0-9]/.test(word)) {
      plain.push(word);
      continue;
    }
    at += takeFlag(words, at, takes.flags, names, given);
  }
  return {
    kind: "values",
    flags: flagValues(takes.flags, given),
    arguments: argumentValues(takes.arguments, plain),
  };
}

/** Records the flag at `at`. Returns the number of further words that it consumes. */
function takeFlag(
  words: readonly string[],
  at: number,
  flags: FlagTable,
  names: ReadonlyMap<string, string>,
  given: Given,
): number {
  const word = words[at]!;
  const equals = word.indexOf("=");
  const shown = equals < 0 ? word : word.slice(0, equals);
  const name = names.get(shown);
  if (name === undefined) throw unknownFlag(shown, [...names.keys(), "--help"]);
  const { kind, repeated } = flags[name]!;
  const before = given.get(name) ?? [];
  if (before.length > 0 && !repeated) throw new HearthError("USAGE", `${shown} is given twice`);
  given.set(name, before);
  if (kind === null) {
    if (equals >= 0) throw new HearthError("USAGE", `${shown} takes no value`);
    before.push(true);
    return 0;
  }
  const value = equals < 0 ? words[at + 1] : word.slice(equals + 1);
  if (value === undefined || (equals < 0 && value.startsWith("--"))) {
    throw new HearthError("USAGE", `${shown} needs a value: ${shown} ${kind.placeholder}`);
  }
  before.push(value);
  return equals < 0 ? 1 : 0;
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
    else throw new HearthError("USAGE", `${shown} ${flag.kind?.placeholder} is missing`);
  }
  return values;
}

function readFlag(shown: string, flag: Flag<unknown>, texts: readonly (string | true)[]): unknown {
  const values = texts.map((text) => {
    if (text === true || flag.kind === null) return true;
    const read = flag.kind.read(text);
    if (!read.ok) throw new HearthError("USAGE", `${shown} ${read.why}`);
    return read.value;
  });
  return flag.repeated ? values : values[0];
}

function argumentValues(table: ArgumentTable, plain: readonly string[]): Record<string, unknown> {
  const values: Record<string, unknown> = {};
  let at = 0;
  for (const [name, { kind, presence }] of Object.entries(table)) {
    const read = (text: string): unknown => {
      const result = kind.read(text);
      if (!result.ok) throw new HearthError("USAGE", `${kind.placeholder} ${result.why}`);
      return result.value;
    };
    if (presence === "rest") {
      values[name] = plain.slice(at).map(read);
      at = plain.length;
    } else if (at < plain.length) {
      values[name] = read(plain[at++]!);
    } else if (presence === "optional") {
      values[name] = null;
    } else {
      throw new HearthError("USAGE", `${kind.placeholder} is missing`);
    }
  }
  if (at < plain.length) {
    throw new HearthError("USAGE", `one argument too many: "${plain[at]!.slice(0, 100)}"`);
  }
  return values;
}
