import type { BlockRef, WireCommand } from "../../control/client/index.ts";
import {
  HearthError,
  type Kind,
  messageOf,
  parseJson,
  readBlockName,
  refuse,
} from "../../core/index.ts";
import { fileText } from "../command.ts";
import { plain } from "./documents.ts";

/**
 * Maximum number of blocks named in one invocation. The client splits them into several commands.
 */
const NAMES_MAX = 65_536;
const BLOCK_FORM = "give a 64-bit hash in decimal, 64 hex digits, or those with /LAYER";

export const BLOCKS_HELP =
  "blocks: engine hash in decimal (also negative), page key or digest in hex, digest/layer; " +
  "- reads one a line from standard input";

function tooMany(): HearthError {
  return new HearthError("USAGE", `more than ${NAMES_MAX} blocks`, {
    fix: `send them in several commands, as with \`split -l ${NAMES_MAX}\``,
  });
}

/** Parses a block reference; null if the word does not name a block. */
function refOf(word: string): BlockRef | null {
  if (readBlockName(word) === null) return null;
  if (!/^-?[0-9]{1,20}$/.test(word)) return word;
  const value = Number(word);
  return Number.isSafeInteger(value) ? value : BigInt(word);
}

/** Parses one block name. */
export const blockName: Kind<BlockRef> = {
  name: "block",
  range: "a block name",
  read(given) {
    const ref = refOf(String(given));
    if (ref !== null) return { ok: true, value: ref };
    return refuse(`"${plain(String(given))}" is not a block`, BLOCK_FORM);
  },
  write: String,
};

/** Parses a block name, or `-` for names from standard input. */
export const blockNameOrInput: Kind<BlockRef> = {
  ...blockName,
  read: (given) => (given === "-" ? { ok: true, value: "-" } : blockName.read(given)),
};

/**
 * Returns the named blocks, including those from standard input. Throws USAGE if there are none or
 * too many.
 */
export async function readBlocks(words: readonly BlockRef[]): Promise<readonly BlockRef[]> {
  const inputs = words.filter((word) => word === "-").length;
  if (inputs > 1) throw new HearthError("USAGE", "standard input can be read only once");
  const blocks: BlockRef[] = [];
  for (const word of words) {
    if (word !== "-") blocks.push(word);
    else for (const block of blocksOf(await standardInput())) blocks.push(block);
  }
  if (blocks.length > NAMES_MAX) throw tooMany();
  if (blocks.length === 0) throw new HearthError("USAGE", "BLOCK is missing");
  return blocks;
}

function* blocksOf(input: string): Generator<BlockRef> {
  let count = 0;
  for (const [index, line] of input.split("\n").entries()) {
    const word = line.trim();
    if (word === "") continue;
    if (++count > NAMES_MAX) throw tooMany();
    const ref = refOf(word);
    if (ref === null) {
      const what = `line ${index + 1}: "${plain(word)}" is not a block`;
      throw new HearthError("USAGE", what, { fix: BLOCK_FORM });
    }
    yield ref;
  }
}

/**
 * Reads a command from a file, or from standard input (`-`). Throws USAGE if it is not a JSON
 * object.
 */
export async function readCommand(file: string): Promise<WireCommand> {
  const text = file === "-" ? await standardInput() : await fileText(file);
  const command = parsed(text, file);
  const isObject = typeof command === "object" && command !== null && !Array.isArray(command);
  if (isObject && "type" in command && typeof command.type === "string") {
    return { ...command, type: command.type };
  }
  throw new HearthError("USAGE", `${file} does not hold a JSON object with a type`);
}

function parsed(text: string, file: string): unknown {
  try {
    return parseJson(text);
  } catch (cause) {
    throw new HearthError("USAGE", `${file} is not valid JSON: ${messageOf(cause)}`, { cause });
  }
}

const BYTES_MAX = 64 * 1024 * 1024;

/** Returns all of standard input as text. Throws USAGE if it is not UTF-8 or longer than 64 MiB. */
async function standardInput(): Promise<string> {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const parts: string[] = [];
  let bytes = 0;
  try {
    for await (const chunk of Bun.stdin.stream()) {
      bytes += chunk.length;
      if (bytes > BYTES_MAX) throw new HearthError("USAGE", "standard input has over 64 MiB");
      parts.push(decoder.decode(chunk, { stream: true }));
    }
    parts.push(decoder.decode());
  } catch (thrown) {
    if (!(thrown instanceof TypeError)) throw thrown;
    throw new HearthError("USAGE", "standard input is not valid UTF-8", { cause: thrown });
  }
  return parts.join("");
}
