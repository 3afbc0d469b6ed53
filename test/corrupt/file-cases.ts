import { existsSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Random, randomBelow } from "../../src/core/index.ts";
import type { Native } from "../../src/native/index.ts";
import { blockPath, QUARANTINE_FOLDER } from "../../src/store/kvb/index.ts";
import { type Block, makeRound, type Round } from "./blocks.ts";
import { DAMAGE_NAMES, DAMAGES, type DamageName, isHarmless, isUnchanged } from "./damage.ts";
import { type Got, type Host, Rig } from "./rig.ts";
import type { Tally } from "./tally.ts";

const BLOCKS = 500;
/** One block in so many is left as it is. */
const CONTROLS = 10;
/** One round in so many restarts the store between damage and reading. */
const RESTARTS = 4;

type Fate = DamageName | "swapped" | "control";

export interface Cases {
  readonly host: Host;
  /** An empty folder. */
  readonly dir: string;
  readonly random: Random;
  readonly tally: Tally;
  /** How many cases, about. */
  readonly cases: number;
  readonly onRound: () => void;
}

/** Where the file of a block lies. */
export function fileOf(native: Native, dir: string, layer: number, { digest }: Block): string {
  const key = new Uint8Array(32);
  native.blockKeys(digest, layer, key);
  return join(dir, blockPath(key, layer, 0));
}

/**
 * Writes blocks through the store, damages their files and asks the store for them: while it is
 * open, or across a restart, so that what it looks at when it starts is tried as well.
 */
export async function runFileCases(options: Cases): Promise<void> {
  const { host, dir, random, tally, cases, onRound } = options;
  const count = Math.min(BLOCKS, cases);
  let rig = await Rig.open(host, dir);
  try {
    for (let round = 0, done = 0; done < cases; round++) {
      const restarts = round % RESTARTS === RESTARTS - 1;
      const blocks = makeRound(random, count);
      await rig.put(blocks);
      await rig.moveToSsd();
      const files = blocks.blocks.map((block) => fileOf(host.native, dir, blocks.layer, block));
      if (restarts) await rig[Symbol.asyncDispose]();
      const fates = damageFiles(files, random);
      if (restarts) rig = await Rig.open(host, dir);
      const where = `round ${round}${restarts ? ", across a restart" : ""}`;
      judge(tally, fates, await rig.get(blocks), where);
      await judgeAgain(rig, { blocks, files, fates, tally, where });
      done += fates.filter((fate) => fate !== "control").length;
      rig.leaveRam();
      emptyQuarantine(dir);
      onRound();
    }
  } finally {
    await rig[Symbol.asyncDispose]();
  }
}

/** Damages most files, each in one way; what was done to each. */
function damageFiles(files: readonly string[], random: Random): Fate[] {
  const fates: Fate[] = [];
  for (let i = 0; i < files.length; i++) {
    const [path, next] = [files[i]!, files[i + 1]];
    const name = DAMAGE_NAMES[randomBelow(random, DAMAGE_NAMES.length + 1)];
    if (i % CONTROLS === 0) {
      fates.push("control");
    } else if (name !== undefined) {
      // The first is a control: as sound at the end of the round as any other is before its turn.
      const isDamaged = damageFile(path, name, bytesOf(next ?? files[0]!), random);
      fates.push(isDamaged ? name : "control");
    } else if (next !== undefined && (i + 1) % CONTROLS !== 0) {
      swap(path, next);
      fates.push("swapped", "swapped");
      i++;
    } else {
      fates.push("control");
    }
  }
  return fates;
}

/** As an array of its own kind: a slice of a Buffer would share its memory. */
function bytesOf(path: string): Uint8Array {
  return new Uint8Array(readFileSync(path));
}

/** False where there is nothing to damage in this way: a file without padding. */
function damageFile(path: string, name: DamageName, other: Uint8Array, random: Random): boolean {
  const file = bytesOf(path);
  let damaged = DAMAGES[name].apply({ file, other, random });
  if (isHarmless(name) && damaged !== null && Buffer.compare(file, damaged) === 0) return false;
  while (!isHarmless(name) && isUnchanged(file, damaged)) {
    damaged = DAMAGES[name].apply({ file, other, random });
  }
  if (damaged === null) rmSync(path);
  else writeFileSync(path, damaged);
  return true;
}

function swap(a: string, b: string): void {
  renameSync(a, `${a}.swap`);
  renameSync(b, a);
  renameSync(`${a}.swap`, b);
}

function judge(tally: Tally, fates: readonly Fate[], got: readonly Got[], where: string): void {
  for (const [i, fate] of fates.entries()) {
    const one = got[i]!;
    if (one === "unserved") tally.fail(`${fate}: no answer, ${where}`);
    else if (fate === "control") tally.control(one === "right", where);
    else if (one === "miss") tally.add(fate, "detected", where);
    // A checksum that saves the reader does not save the store: it handed those bytes out.
    else if (one !== "right") tally.add(fate, "served", where);
    else tally.add(fate, isHarmless(fate as DamageName) ? "harmless" : "unseen", where);
  }
}

interface Judged {
  readonly blocks: Round;
  readonly files: readonly string[];
  readonly fates: readonly Fate[];
  readonly tally: Tally;
  readonly where: string;
}

/** What was found out stays out: neither the store nor the folder has it under its name. */
async function judgeAgain(rig: Rig, { blocks, files, fates, tally, where }: Judged): Promise<void> {
  const got = await rig.get(blocks);
  await rig.store.ssd!.room.removals.settled();
  for (const [i, fate] of fates.entries()) {
    const isRight = got[i] === "right";
    if (fate === "control" || (fate !== "swapped" && isHarmless(fate))) {
      if (!isRight && fate === "control") tally.control(false, `${where}, asked again`);
      continue;
    }
    if (got[i] !== "miss") tally.fail(`${fate}: asked again, ${got[i]}, ${where}`);
    if (existsSync(files[i]!)) tally.fail(`${fate}: the file is still there, ${where}`);
  }
}

/** What is set aside counts against the tier's cap. */
function emptyQuarantine(dir: string): void {
  const folder = join(dir, QUARANTINE_FOLDER);
  for (const name of readdirSync(folder)) rmSync(join(folder, name));
}
