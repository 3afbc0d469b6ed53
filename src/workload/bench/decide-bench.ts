import type { WorkerId } from "../../core/index.ts";
import { type Clock, HearthError, type Random, seededRandom } from "../../core/index.ts";
import { loadNative, type Native } from "../../native/index.ts";
import {
  ActiveLoad,
  type PrefixIndex,
  PromptHasher,
  ROUTER_DEFAULTS,
  Router,
  type Target,
  tokenSalt,
  WorkerTable,
} from "../../router/index.ts";
import { quantile, rounded, yieldOrAbort } from "./measure.ts";

export interface DecideBenchOptions {
  readonly clock: Clock;
  readonly workers: number;
  /** Tokens of each prompt. */
  readonly promptTokens: number;
  /** Number of requests that are in progress at any time. */
  readonly live: number;
  /** Number of blocks of other prompts that each worker has. */
  readonly heldBlocks: number;
  readonly decisions: number;
  readonly makeIndex: (native: Native) => PrefixIndex;
  readonly signal?: AbortSignal;
}

const MODEL = "bench";
const SESSIONS = 512;
/** Number of tokens with which all prompts begin. */
const SHARED_TOKENS = 1_024;
/** Number of blocks of one filler prompt, as many as a typical prompt has. */
const FILLER_BLOCKS = 64;
const WARM_UP = 300;
const SLICE = 100;

/**
 * Measures routing decisions. The workers have many prefixes, and each prompt continues one of 512
 * conversations, of which some workers have more or fewer leading blocks.
 */
export async function benchDecide(options: DecideBenchOptions) {
  const { clock, promptTokens, live, decisions } = options;
  const { blockTokens, requestExpiryMs } = ROUTER_DEFAULTS;
  const native = loadNative();
  const random = seededRandom(1);
  const table = new WorkerTable({ targetsMax: Math.max(options.workers, 1) });
  const targets = addWorkers(table, options.workers, blockTokens);
  using index = options.makeIndex(native);
  const sessions = makeSessions(random, promptTokens);
  fill(index, targets, sessions, new PromptHasher(native), random, options.heldBlocks);
  const load = new ActiveLoad({ clock, blockTokens, requestExpiryMs });
  using router = new Router({
    ...{ clock, random, native, table, index, load },
    settings: ROUTER_DEFAULTS,
  });
  const decided: number[] = [];
  const freed: number[] = [];
  for (let number = -WARM_UP - live; number < decisions; number++) {
    const tokens = promptOf(sessions, random, number);
    const startMs = clock.monotonicMs();
    const outcome = router.bestWorkerNow({
      model: MODEL,
      prompt: { kind: "tokens", tokens },
      requestId: `request ${number}`,
    });
    const decidedMs = clock.monotonicMs();
    if (outcome.kind !== "routed") throw new HearthError("INTERNAL", `not routed: ${outcome.why}`);
    router.markPrefillComplete(`request ${number - Math.floor(live / 8)}`);
    const freeMs = clock.monotonicMs();
    router.free(`request ${number - live}`);
    if (number >= 0) {
      decided.push((decidedMs - startMs) * 1_000);
      freed.push((clock.monotonicMs() - freeMs) * 1_000);
    }
    if (number % SLICE !== 0) continue;
    await yieldOrAbort(options.signal);
  }
  return {
    workers: options.workers,
    prompt_tokens: promptTokens,
    live_requests: live,
    held_blocks: index.stats.heldBlocks,
    decisions,
    /**
     * Median time of one decision from the prompt's tokens, hashing included, in microseconds. The
     * decision is counted as load and recorded for `explain`.
     */
    decide_p50_us: rounded(quantile(decided, 0.5), 1),
    decide_p99_us: rounded(quantile(decided, 0.99), 1),
    free_p50_us: rounded(quantile(freed, 0.5), 1),
  };
}

function addWorkers(table: WorkerTable, workers: number, blockTokens: number): Target[] {
  return Array.from({ length: workers }, (_, number) =>
    table.put({
      worker: `worker-${number}` as WorkerId,
      rank: 0,
      model: MODEL,
      role: "both",
      url: null,
      totalBlocks: null,
      batchTokensMax: null,
      spaces: [{ kind: "tokens", model: MODEL, blockTokens }],
    }),
  );
}

function makeSessions(random: Random, promptTokens: number): Uint32Array[] {
  const shared = Uint32Array.from({ length: SHARED_TOKENS }, () => random.u32() % 150_000);
  return Array.from({ length: SESSIONS }, () => {
    const tokens = Uint32Array.from({ length: promptTokens }, () => random.u32() % 150_000);
    tokens.set(shared.subarray(0, promptTokens));
    return tokens;
  });
}

/** Returns the prompt of a conversation's next turn: the stored tokens with a different end. */
function promptOf(sessions: readonly Uint32Array[], random: Random, number: number): Uint32Array {
  const tokens = sessions[random.u32() % sessions.length].slice();
  const from = Math.floor(tokens.length * 0.9);
  for (let at = from; at < tokens.length; at++) tokens[at] = (tokens[at] + number + SLICE) >>> 0;
  return tokens;
}

/**
 * Stores each conversation on three workers (all of it, half, and a tenth) and fills each worker
 * with blocks of other prompts.
 */
function fill(
  index: PrefixIndex,
  targets: readonly Target[],
  sessions: readonly Uint32Array[],
  hasher: PromptHasher,
  random: Random,
  heldBlocks: number,
): void {
  const salt = tokenSalt(undefined, undefined);
  const store = (target: Target, hashes: BigUint64Array) => {
    const stored = { kind: "stored", tier: "device", parent: null, tokenHashes: null } as const;
    if (hashes.length > 0) index.apply([{ target: target.id, change: { ...stored, hashes } }]);
  };
  const { blockTokens } = ROUTER_DEFAULTS;
  for (const tokens of sessions) {
    const hashes = hasher.tokens(tokens, blockTokens, salt);
    for (const share of [1, 0.5, 0.1]) {
      const target = targets[random.u32() % targets.length];
      store(target, hashes.slice(0, Math.ceil(hashes.length * share)));
    }
  }
  const words = new Uint32Array(FILLER_BLOCKS * 2);
  for (const target of targets) {
    for (let held = 0; held < heldBlocks; held += FILLER_BLOCKS) {
      for (let at = 0; at < words.length; at++) words[at] = random.u32();
      store(target, new BigUint64Array(words.slice().buffer));
    }
  }
}
