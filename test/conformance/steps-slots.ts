import { assert, randomBelow, seededRandom } from "../../src/core/index.ts";
import type { ActiveLoad, TargetId } from "../../src/router/index.ts";
import type { ManualClock } from "../support/index.ts";
import { Chains } from "./chains.ts";
import { LiteralSlots } from "./literal/slots-model.ts";

const TARGETS = 16;
const CHAINS = 300;
const BLOCKS_MAX = 60;
/** So many requests live at a time, about. */
const LIVE = 200;

/** Random requests through their lives. Throws where the load and the model differ. */
export function walkSlots(
  load: ActiveLoad,
  clock: ManualClock,
  options: { readonly blockTokens: number; readonly steps: number; readonly seed: number },
): { asked: number } {
  const { blockTokens, steps, seed } = options;
  const random = seededRandom(seed);
  const chains = new Chains(random, CHAINS, BLOCKS_MAX);
  const model = new LiteralSlots(blockTokens);
  const below = (count: number) => randomBelow(random, count);
  const anyId = () => `request-${below(LIVE * 2)}`;
  const additional = new Uint32Array(TARGETS);
  let asked = 0;
  for (let step = 0; step < steps; step++) {
    move(below(100));
    if (step % 16 === 0) compare(below(TARGETS) as TargetId);
    if (step % 64 === 0) compareAdditional();
  }
  return { asked };

  function move(kind: number): void {
    const id = anyId();
    const nowMs = clock.monotonicMs();
    if (kind < 40) {
      const target = below(TARGETS) as TargetId;
      const prompt = promptOf();
      model.add(id, target, prompt, nowMs);
      const hashes = new BigUint64Array(prompt.hashes);
      load.add({ id, target, ...prompt, hashes, expectedOutputTokens: null });
    } else if (kind < 60) {
      const wasThere = model.prefillComplete(id, nowMs);
      assert((load.markPrefillComplete(id) === "done") === wasThere, "prefill of a live one");
    } else if (kind < 75) {
      const tokens = below(400);
      const wasThere = model.output(id, tokens, nowMs);
      assert((load.output(id, tokens) === "done") === wasThere, "output of a live one");
    } else if (kind < 97) {
      assert((load.free(id) === "done") === model.free(id), "a live one is freed once");
    } else if (kind < 99) {
      clock.advance(below(20_000));
      assert(load.expire().length === model.expire(clock.monotonicMs()), "as many expire");
    } else if (below(50) === 0) {
      const target = below(TARGETS) as TargetId;
      load.dropTarget(target);
      model.dropTarget(target);
    }
  }

  function promptOf() {
    const hashes = chains.prompt();
    const promptTokens = hashes.length * blockTokens + below(blockTokens);
    return { hashes, promptTokens, prefillTokens: below(promptTokens + 1) };
  }

  function compare(target: TargetId): void {
    const { activeBlocks, activePrefillTokens, activeRequests } = load.of(target);
    const wanted = [
      model.activeBlocks(target),
      model.activePrefillTokens(target),
      model.activeRequests(target),
    ];
    const given = [activeBlocks, activePrefillTokens, activeRequests];
    assert(String(given) === String(wanted), `target ${target}: ${given} for ${wanted}`);
    assert(load.requests === model.requests, "as many requests live");
    asked++;
  }

  function compareAdditional(): void {
    const { hashes, promptTokens } = promptOf();
    load.additionalBlocks(new BigUint64Array(hashes), promptTokens, additional);
    for (let target = 0; target < TARGETS; target++) {
      const wanted = model.additionalBlocks(target, hashes, promptTokens);
      assert(additional[target] === wanted, `target ${target}: ${additional[target]}, ${wanted}`);
    }
    asked++;
  }
}
