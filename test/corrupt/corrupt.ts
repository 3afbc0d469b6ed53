import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { seededRandom } from "../../src/core/index.ts";
import { type Cases, runFileCases } from "./file-cases.ts";
import { runIndexCases } from "./index-cases.ts";
import { runRamCases } from "./ram-cases.ts";
import { Host } from "./rig.ts";
import { Tally } from "./tally.ts";

export interface CorruptOptions {
  /** Cases of all kinds together, about. */
  readonly count: number;
  readonly seed: number;
  /** An existing folder on the file system to try. */
  readonly dir: string;
  readonly onProgress: (tally: Tally) => void;
}

/** What of the cases each part takes; damage to an index takes a start for each case. */
const RAM_SHARE = 0.1;
const INDEX_SHARE = 0.002;
const INDEX_CASES_MIN = 15;

/** Damages everything a store keeps blocks and their names in, and asks it for the blocks. */
export async function runCorrupt({ count, seed, dir, onProgress }: CorruptOptions): Promise<Tally> {
  const tally = new Tally();
  const random = seededRandom(seed);
  const onRound = () => onProgress(tally);
  const ram = Math.ceil(count * RAM_SHARE);
  const index = Math.max(INDEX_CASES_MIN, Math.ceil(count * INDEX_SHARE));
  const parts: [string, (cases: Cases) => Promise<void>, number][] = [
    ["files", runFileCases, Math.max(1, count - ram - index)],
    ["ram", runRamCases, ram],
    ["index", runIndexCases, index],
  ];
  await using host = new Host();
  for (const [name, run, cases] of parts) {
    const folder = join(dir, name);
    mkdirSync(folder);
    await run({ host, dir: folder, random, tally, cases, onRound });
    rmSync(folder, { recursive: true });
  }
  return tally;
}
