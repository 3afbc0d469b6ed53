import type { SimulatedWorker } from "./fleet.ts";
import type { SimulatedRequest } from "./requests.ts";

const SHARE = 0.1;
const SLACK_TOKENS = 200_000;

/**
 * The rule of the traces' own figures: the worker that holds the most leading blocks, among those
 * within 10 % and 200,000 tokens of the mean of assigned prompt tokens; ties to the least assigned.
 */
export function longestPrefix(
  workers: readonly SimulatedWorker[],
): (request: SimulatedRequest) => number {
  let assigned = 0;
  return ({ blocks, inputTokens }) => {
    const most = (assigned / workers.length) * (1 + SHARE) + SLACK_TOKENS;
    let [best, bestHits] = [-1, -1];
    for (const [place, worker] of workers.entries()) {
      if (worker.promptTokens > most) continue;
      const hits = worker.cache.leading(blocks);
      const isLess = best >= 0 && worker.promptTokens < workers[best]!.promptTokens;
      if (hits > bestHits || (hits === bestHits && isLess)) [best, bestHits] = [place, hits];
    }
    assigned += inputTokens;
    return best;
  };
}
