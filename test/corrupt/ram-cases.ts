import { type Random, randomBelow } from "../../src/core/index.ts";
import type { HandleBatch } from "../../src/store/index.ts";
import { makeRound, type Round } from "./blocks.ts";
import type { Cases } from "./file-cases.ts";
import { type Got, Rig } from "./rig.ts";
import type { Tally } from "./tally.ts";

/** How damage is to be seen: bytes of RAM are the reader's to compare, those of a file ours. */
const SEEN_AS = { ram_bits: "caught", ram_bits_before_write: "miss" } as const satisfies Record<
  string,
  Got
>;
type RamKind = keyof typeof SEEN_AS;

const BLOCKS = 200;
const CONTROLS = 10;

/**
 * Flips bits of blocks in a live arena. By turns the block is read from RAM, where the checksum
 * that comes with it tells, and goes to SSD with its flipped bits first, where the file must tell.
 */
export async function runRamCases({ host, dir, random, tally, cases, onRound }: Cases) {
  await using rig = await Rig.open(host, dir, "write_back");
  const count = Math.min(BLOCKS, cases);
  for (let done = 0, round = 0; done < cases; round++) {
    const blocks = makeRound(random, count);
    const flipped = flipSome(rig, blocks, await rig.put(blocks), random);
    const goesDown = round % 2 === 1;
    if (goesDown) await rig.moveToSsd();
    const kind = goesDown ? "ram_bits_before_write" : "ram_bits";
    const got = await rig.get(blocks);
    for (const [i, one] of got.entries()) {
      judge(tally, flipped.has(i) ? kind : null, one, `round ${round}`);
    }
    done += flipped.size;
    rig.leaveRam();
    onRound();
  }
}

/** One to eight bits of most blocks; which blocks. */
function flipSome(rig: Rig, { blocks }: Round, handles: HandleBatch, random: Random): Set<number> {
  const flipped = new Set<number>();
  for (const [i, { bytes }] of blocks.entries()) {
    if (i % CONTROLS === 0) continue;
    flipped.add(i);
    rig.flipInRam(handles, i, randomBelow(random, bytes), 1 + randomBelow(random, 255));
  }
  return flipped;
}

function judge(tally: Tally, kind: RamKind | null, got: Got, where: string): void {
  if (kind === null) tally.control(got === "right", where);
  else if (got === SEEN_AS[kind]) tally.add(kind, "detected", where);
  else if (got === "right") tally.add(kind, "unseen", where);
  else if (got === "unserved") tally.fail(`${kind}: no answer, ${where}`);
  else tally.add(kind, "served", where);
}
