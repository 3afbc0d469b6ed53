import type { BlockRef } from "../../control/client/index.ts";
import { HearthError, readBlockName } from "../../core/index.ts";
import type { Kind } from "../kinds.ts";
import { plain } from "./plain.ts";
import { standardInput } from "./standard-input.ts";

/** More than a host is likely to hold of one conversation; the client sends several commands. */
const NAMES_MAX = 65_536;
const WHY = "is no block: give a 64-bit hash in decimal, 64 hex digits, or those with /LAYER";

export const BLOCKS_HELP =
  "blocks: engine hash in decimal (also negative), page key or digest in hex, digest/layer; " +
  "- reads one a line from standard input";

function whyNot(word: string): string {
  return `"${plain(word)}" ${WHY}`;
}

function tooMany(): HearthError {
  return new HearthError("USAGE", `more than ${NAMES_MAX} blocks`, {
    fix: `send them in several commands, as with \`split -l ${NAMES_MAX}\``,
  });
}

/** What the command sends for a word that names a block; null where it names none. */
function refOf(word: string): BlockRef | null {
  if (readBlockName(word) === null) return null;
  if (!/^-?[0-9]{1,20}$/.test(word)) return word;
  const value = Number(word);
  return Number.isSafeInteger(value) ? value : BigInt(word);
}

/** One block by its name. */
export const blockName: Kind<BlockRef> = {
  placeholder: "BLOCK",
  read(given) {
    const ref = refOf(given);
    return ref === null ? { ok: false, why: whyNot(given) } : { ok: true, value: ref };
  },
  show: String,
};

/** The same, or `-`. */
export const blockNameOrInput: Kind<BlockRef> = {
  ...blockName,
  read: (given) => (given === "-" ? { ok: true, value: "-" } : blockName.read(given)),
};

/** The blocks that the words name. Throws USAGE where there are none, or too many for a command. */
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
      throw new HearthError("USAGE", `line ${index + 1}: ${whyNot(word)}`);
    }
    yield ref;
  }
}
