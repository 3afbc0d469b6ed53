import { readFile, rename, writeFile } from "node:fs/promises";
import type { ResidencyTier } from "../../observability/activity/index.ts";
import type { HeldRun, IndexChange } from "../prefix-index.ts";
import type { TargetId } from "../workers.ts";

type Row = readonly [target: number, tier: ResidencyTier, parent: string | null, hashes: string[]];

function checksum(text: string): string {
  return Bun.hash.xxHash3(text).toString(16);
}

/** The reference index's own file: a checksum and JSON. */
export async function writeRuns(path: string, runs: Iterable<HeldRun>): Promise<void> {
  const rows = [...runs].map(
    ({ target, tier, parent, hashes }): Row => [
      target,
      tier,
      parent?.toString() ?? null,
      [...hashes].map(String),
    ],
  );
  const text = JSON.stringify(rows);
  await writeFile(`${path}.new`, `${checksum(text)}\n${text}`);
  await rename(`${path}.new`, path);
}

/** As the changes that make it again; null where the file is not one or is damaged. */
export async function readRuns(path: string): Promise<IndexChange[] | null> {
  const [sum, text] = (await readFile(path, "utf8").catch(() => "")).split("\n", 2);
  if (text === undefined || sum !== checksum(text)) return null;
  return (JSON.parse(text) as Row[]).map(([target, tier, parent, hashes]) => ({
    target: target as TargetId,
    change: {
      kind: "stored",
      tier,
      parent: parent === null ? null : BigInt(parent),
      hashes: BigUint64Array.from(hashes, BigInt),
      tokenHashes: null,
    },
  }));
}
