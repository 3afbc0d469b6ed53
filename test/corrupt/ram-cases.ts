import { type Random, randomBelow } from "../../src/core/index.ts";
import type { HandleBatch } from "../../src/tiers/index.ts";
import { makeRound, type Round } from "./blocks.ts";
import type { Cases } from "./file-cases.ts";
import { Rig } from "./rig.ts";
import type { Tally } from "./tally.ts";

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

function judge(tally: Tally, kind: string | null, one: string, where: string): void {
  if (kind === null) tally.control(one === "right", where);
  else if (one === "wrong") tally.add(kind, "served", where);
  else if (one === "caught" || one === "miss") tally.add(kind, "detected", where);
  else if (one === "right") tally.add(kind, "unseen", where);
  else tally.fail(`${kind}: no answer, ${where}`);
}
