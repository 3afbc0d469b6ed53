import type { FindingKind } from "./findings.ts";

/**
 * An input that never comes to an end stops the loop that would notice it. So each input is laid
 * into memory that a worker looks at; the worker saves the input and ends the process.
 */
export interface Watchdog extends Disposable {
  begin(target: string, input: Uint8Array): void;
  end(): void;
}

/** Layout of the shared memory: two counters, the lengths, then target and input. */
export const WATCH = {
  begun: 0,
  ended: 1,
  targetBytes: 2,
  inputBytes: 3,
  words: 4,
  targetAt: 16,
  inputAt: 64,
  inputMax: 2 ** 20,
} as const;

export const STUCK: FindingKind = "hang";
const STUCK_MS = 10_000;

/** What the worker is started with. */
export interface WatchOrder {
  readonly shared: SharedArrayBuffer;
  readonly stuckMs: number;
}

export function startWatchdog(stuckMs = STUCK_MS): Watchdog {
  const shared = new SharedArrayBuffer(WATCH.inputAt + WATCH.inputMax);
  const words = new Int32Array(shared, 0, WATCH.words);
  const bytes = new Uint8Array(shared);
  const encoder = new TextEncoder();
  const worker = new Worker(new URL("./watchdog-worker.ts", import.meta.url).href);
  worker.postMessage({ shared, stuckMs } satisfies WatchOrder);
  worker.unref();
  let named = "";
  return {
    begin(target, input) {
      if (target !== named) {
        const name = encoder.encode(target);
        bytes.set(name, WATCH.targetAt);
        words[WATCH.targetBytes] = name.length;
        named = target;
      }
      const kept = input.subarray(0, WATCH.inputMax);
      bytes.set(kept, WATCH.inputAt);
      words[WATCH.inputBytes] = kept.length;
      Atomics.add(words, WATCH.begun, 1);
    },
    end: () => void Atomics.store(words, WATCH.ended, words[WATCH.begun]!),
    [Symbol.dispose]: () => worker.terminate(),
  };
}
