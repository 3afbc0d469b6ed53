import { Database } from "bun:sqlite";
import { cpSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Random, randomBelow } from "../../src/core/index.ts";
import { type Block, makeRound } from "./blocks.ts";
import type { Cases } from "./file-cases.ts";
import { NAMESPACE_KEY, Rig } from "./rig.ts";

const BLOCKS = 40;
const PAGE_BYTES = 4096;

interface Input {
  readonly path: string;
  readonly blocks: readonly Block[];
  readonly random: Random;
}

function changeRow({ path, random }: Input, column: string, value: string): void {
  using db = new Database(path);
  const row = randomBelow(random, BLOCKS);
  db.run(`UPDATE blocks SET ${column} = ${value} WHERE id =
    (SELECT id FROM blocks ORDER BY id LIMIT 1 OFFSET ${row})`);
}

/**
 * Flips one bit of a name wherever the file holds it: row, index and leavings of earlier rows agree
 * with each other then.
 */
function flipIn({ path, random }: Input, name: Uint8Array): void {
  const file = readFileSync(path);
  const [byte, mask] = [randomBelow(random, name.length), 1 << randomBelow(random, 8)];
  const places: number[] = [];
  for (let at = file.indexOf(name); at >= 0; at = file.indexOf(name, at + 1)) places.push(at);
  if (places.length === 0) throw new Error("the index does not hold what it should");
  for (const at of places) file[at + byte]! ^= mask;
  writeFileSync(path, file);
}

function digestOf({ blocks, random }: Input): Uint8Array {
  return blocks[randomBelow(random, blocks.length)]!.digest;
}

/** What happens to an index. Each must be seen before a row of it is believed. */
const DAMAGES: Readonly<Record<string, (input: Input) => void>> = {
  index_bit_of_digest: (input) => flipIn(input, digestOf(input)),
  index_bit_of_namespace: (input) => flipIn(input, NAMESPACE_KEY),
  index_row_bytes: (input) => changeRow(input, "bytes", "bytes + 4096"),
  index_row_checksum: (input) => changeRow(input, "checksum", "randomblob(8)"),
  index_row_digest: (input) => changeRow(input, "digest", "randomblob(32)"),
  index_row_parent: (input) => changeRow(input, "parent", "randomblob(32)"),
  index_row_variant: (input) => changeRow(input, "variant", "variant + 1"),
  index_row_layer: (input) => changeRow(input, "layer", "layer - 1 + 2 * (layer = 0)"),
  index_row_namespace: (input) => changeRow(input, "namespace_id", "namespace_id + 1"),
  index_row_gone({ path, random }) {
    using db = new Database(path);
    const row = randomBelow(random, BLOCKS);
    db.run(`DELETE FROM blocks WHERE id = (SELECT id FROM blocks LIMIT 1 OFFSET ${row})`);
  },
  index_row_twice({ path }) {
    using db = new Database(path);
    db.run(`INSERT INTO blocks SELECT id + 1000000, randomblob(32), layer, namespace_id, parent,
      bytes, checksum, variant, last_seen, uses, seal FROM blocks LIMIT 1`);
  },
  index_truncated({ path, random }) {
    truncateSync(path, 1 + randomBelow(random, readFileSync(path).length - 1));
  },
  index_zeroed_page({ path, random }) {
    const file = readFileSync(path);
    const page = randomBelow(random, file.length / PAGE_BYTES);
    file.fill(0, page * PAGE_BYTES, (page + 1) * PAGE_BYTES);
    writeFileSync(path, file);
  },
  index_page_of_noise({ path, random }) {
    const file = readFileSync(path);
    const at = randomBelow(random, file.length / PAGE_BYTES) * PAGE_BYTES;
    for (let i = at; i < at + PAGE_BYTES; i++) file[i] = random.u32();
    writeFileSync(path, file);
  },
  index_empty: ({ path }) => truncateSync(path, 0),
};

/**
 * Damages the index of a folder, one way at a time, and starts a store on it: it must be set aside,
 * and every block be served from what the headers say.
 */
export async function runIndexCases({ host, dir, random, tally, cases, onRound }: Cases) {
  const names = Object.keys(DAMAGES);
  const blocks = makeRound(random, BLOCKS);
  const index = join(dir, "index");
  const sound = join(dir, "..", "sound-index");
  {
    await using rig = await Rig.open(host, dir);
    await rig.put(blocks);
    await rig.moveToSsd();
  }
  cpSync(index, sound, { recursive: true });
  for (let done = 0; done < cases; done++) {
    rmSync(index, { recursive: true });
    cpSync(sound, index, { recursive: true });
    const kind = names[done % names.length]!;
    const path = join(index, "hearth.sqlite");
    DAMAGES[kind]!({ path, blocks: blocks.blocks, random });
    await using rig = await Rig.open(host, dir);
    const got = await rig.get(blocks);
    const where = `case ${done}`;
    // An empty file is a new index: then, too, the headers say everything.
    const { state, previous } = rig.index;
    const isBelieved = state.setAside === null && previous.incarnation !== null;
    if (got.includes("wrong") || got.includes("caught")) tally.add(kind, "served", where);
    else tally.add(kind, isBelieved ? "unseen" : "detected", where);
    for (const one of got) tally.control(one === "right", `${kind}, ${where}`);
    onRound();
  }
  rmSync(sound, { recursive: true });
}
