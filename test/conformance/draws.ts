import { assert, seededRandom, type WorkerId } from "../../src/core/index.ts";
import type { RouteRequest } from "../../src/router/index.ts";
import { lowest, softmax } from "./literal/formulas.ts";
import type { Rig } from "./scenario.ts";

const MODEL = "model-a";
const WORKERS = 5;
const BLOCK_TOKENS = 16;
/** The 0.9999 quantile of chi-squared with four degrees of freedom: once in 10,000 by chance. */
const CHI_SQUARED_MAX = 23.51;

/**
 * Draws many times among workers of known costs, each draw with its own seed, and compares how
 * often each came with its probability. Then draws again with the same seeds. Throws on a
 * difference.
 */
export function checkDraws(rig: Rig, temperature: number, draws: number): readonly number[] {
  const held = [0, 0, 4, 4, 2];
  const random = seededRandom(9);
  const hashes = BigUint64Array.from({ length: 8 }, () => BigInt(random.u32()) + 1n);
  for (let at = 0; at < WORKERS; at++) {
    const spaces = [{ kind: "tokens", model: MODEL, blockTokens: BLOCK_TOKENS } as const];
    const spec = {
      worker: `worker-${at}` as WorkerId,
      rank: 0,
      model: MODEL,
      role: "both",
    } as const;
    const { id } = rig.table.put({
      ...{ ...spec, spaces },
      ...{ url: null, totalBlocks: null, batchTokensMax: null },
    });
    rig.table.setState(id, "live");
    rig.table.setKnown(id, true);
    const change = {
      ...({ kind: "stored", tier: "device", parent: null, tokenHashes: null } as const),
      hashes: hashes.slice(0, held[at]!),
    };
    if (held[at]! > 0) rig.index.apply([{ target: id, change }]);
  }
  // Eight blocks to hold, eight to prefill, less what is there.
  const costs = held.map((blocks) => 8 - blocks + 8);
  const probabilities = temperature > 0 ? softmax(costs, temperature) : lowest(costs);
  const draw = (seed: number): number => {
    const prompt = { kind: "hashes", hashes, blockTokens: BLOCK_TOKENS } as const;
    const request: RouteRequest = { model: MODEL, prompt, overrides: { temperature, seed } };
    const outcome = rig.router.bestWorkerNow(request);
    assert(outcome.kind === "routed", "a worker for it");
    return Number(outcome.target.worker.slice("worker-".length));
  };
  const chosen = Array.from({ length: draws }, (_, seed) => draw(seed));
  const counts = held.map((_, at) => chosen.filter((one) => one === at).length);
  let distance = 0;
  for (const [at, probability] of probabilities.entries()) {
    const expected = draws * probability;
    assert(expected > 0 || counts[at] === 0, "what cannot be chosen never is");
    if (expected > 0) distance += (counts[at]! - expected) ** 2 / expected;
  }
  assert(distance < CHI_SQUARED_MAX, `${counts} of ${draws} for ${probabilities}`);
  const again = Array.from({ length: 100 }, (_, seed) => draw(seed));
  assert(String(again) === String(chosen.slice(0, 100)), "a seed gives the same choice again");
  return counts;
}
