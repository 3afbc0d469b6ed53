import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { messageOf } from "../core/index.ts";
import type { ConfigBook } from "./book.ts";
import type { MachineFacts } from "./facts.ts";
import { positionsOf } from "./key-locator.ts";
import {
  CONFIG_BYTES_MAX,
  type ConfigResult,
  type Overrides,
  parseBook,
  TOO_LARGE,
} from "./parse.ts";
import { AGENT_BOOK, type Config } from "./schema.ts";

/** Reads and validates the file at `path`. Never throws: an unreadable file is a problem too. */
export function loadConfig(path: string, facts: MachineFacts): Promise<ConfigResult> {
  return loadBook<Config>(AGENT_BOOK, path, facts);
}

/** The same for any kind of file. `C` is what the book describes. */
export async function loadBook<C>(
  book: ConfigBook,
  path: string,
  facts: MachineFacts,
  overrides: Overrides = {},
): Promise<ConfigResult<C>> {
  const read = await readBounded(path);
  if (!read.ok) return refused(path, read.what, "name a TOML file that the agent's user may read");
  const text = new TextDecoder().decode(read.bytes);
  const broken = firstBadByte(read.bytes, text);
  if (broken !== null) {
    const { line, column } = positionsOf(text)(broken);
    return refused(path, "holds bytes that are not UTF-8", "save the file as UTF-8", line, column);
  }
  return parseBook<C>(book, text, path, facts, overrides);
}

function refused(
  file: string,
  what: string,
  instead: string,
  line = 0,
  column = 0,
): ConfigResult<never> {
  return { ok: false, problems: [{ file, line, column, key: "", what, instead }] };
}

type Bounded = { ok: true; bytes: Uint8Array } | { ok: false; what: string };

/** At most the allowed size, and from regular files only: a device or pipe need never end. */
async function readBounded(path: string): Promise<Bounded> {
  try {
    // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
    await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const stat = await file.stat();
    if (!stat.isFile()) return { ok: false, what: "is not a regular file" };
    const buffer = new Uint8Array(CONFIG_BYTES_MAX + 1);
    let filled = 0;
    while (filled < buffer.length) {
      const { bytesRead } = await file.read(buffer, filled, buffer.length - filled, filled);
      if (bytesRead === 0) return { ok: true, bytes: buffer.subarray(0, filled) };
      filled += bytesRead;
    }
    return { ok: false, what: TOO_LARGE };
  } catch (thrown) {
    return { ok: false, what: `cannot be read: ${messageOf(thrown)}` };
  }
}

/** Offset in `text` of the first character that stands for bytes which were not UTF-8. */
function firstBadByte(bytes: Uint8Array, text: string): number | null {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return null;
  } catch {
    return Math.max(0, text.indexOf("\ufffd"));
  }
}
