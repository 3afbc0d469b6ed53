import { heapStats } from "bun:jsc";
import { messageOf, type Random, randomBelow, seededRandom } from "../../src/core/index.ts";
import { type Finding, type FindingKind, Findings } from "./findings.ts";
import { INPUT_BYTES_MAX, minimise, mutate } from "./mutate.ts";
import type { Target } from "./target.ts";
import { TARGETS } from "./targets.ts";
import type { Watchdog } from "./watchdog.ts";

/** No input may take longer. Slow ones are tried again: the machine has other work. */
const HANG_MS = 100;
const HANG_TRIES = 20;
const INPUTS_A_LOOK = 64;
const LOOKS_A_WEIGHING = 16;
const MINIMISE_MS = 3_000;
/** What a target may add to the process while it runs, and what of it may be left behind. */
const RESIDENT_BYTES_MAX = 768 * 2 ** 20;
const LEFT_BYTES_MAX = 48 * 2 ** 20;
/** How long, and how often, what is left may still go. */
const REST_MS = 100;
const REST_TRIES = 40;
const CORPUS_MAX = 2_000;
const KEPT_BYTES_MAX = 16 * 1024;

export interface TargetResult {
  readonly inputs: number;
  readonly inputs_per_s: number;
  readonly slowest_ms: number;
  /** Kinds of answers and failures met. */
  readonly features: number;
}

export interface FuzzResult {
  readonly seed: number;
  readonly seconds: number;
  readonly inputs: number;
  readonly inputs_per_s: number;
  readonly crashes: number;
  readonly hangs: number;
  readonly targets: Record<string, TargetResult>;
  readonly findings: readonly Finding[];
}

export interface FuzzOptions {
  readonly seconds: number;
  readonly seed: number;
  readonly targets: readonly string[];
  readonly watchdog: Watchdog;
  /** Ends as soon as anything is found. */
  readonly untilFound: boolean;
  readonly say: (line: string) => void;
}

/** CPU time of this thread's longest turn: waiting for other processes is no stall. */
function watchTurns() {
  let isOver = false;
  let longestUs = 0;
  let before = process.threadCpuUsage();
  const look = () => {
    const { user, system } = process.threadCpuUsage(before);
    longestUs = Math.max(longestUs, user + system);
    before = process.threadCpuUsage();
    if (!isOver) setImmediate(look);
  };
  setImmediate(look);
  return {
    longestMs: () => {
      look();
      return longestUs / 1e3;
    },
    stop: () => {
      isOver = true;
    },
  };
}

/** One target with what it has been given so far. */
class Session {
  readonly #target: Target;
  readonly #options: FuzzOptions;
  readonly #findings: Findings;
  readonly #random: Random;
  readonly #corpus: Uint8Array[];
  readonly #features = new Set<string>();
  #isNews = false;
  #slowestMs = 0;
  #inputs = 0;

  constructor(target: Target, options: FuzzOptions, findings: Findings) {
    this.#target = target;
    this.#options = options;
    this.#findings = findings;
    this.#random = seededRandom(options.seed);
    this.#corpus = [...target.corpus];
  }

  readonly #saw = (feature: string): void => {
    if (this.#features.has(feature)) return;
    this.#features.add(feature);
    this.#isNews = true;
  };

  async run(seconds: number): Promise<TargetResult> {
    const heapBefore = heapBytes();
    const residentMax = process.memoryUsage.rss() + RESIDENT_BYTES_MAX;
    const start = Bun.nanoseconds();
    const isOver = () =>
      Bun.nanoseconds() > start + seconds * 1e9 ||
      this.#findings.full ||
      (this.#options.untilFound && this.#findings.list.length > 0);
    for (let look = 1; !isOver(); look++) {
      for (let i = 0; i < INPUTS_A_LOOK && !isOver(); i++) await this.#try(this.#next());
      if (look % LOOKS_A_WEIGHING === 0) this.#weigh(residentMax);
      await new Promise((resolve) => setImmediate(resolve));
    }
    const ran = (Bun.nanoseconds() - start) / 1e9;
    await this.#close(heapBefore);
    const rate = Math.round(this.#inputs / ran);
    return {
      inputs: this.#inputs,
      inputs_per_s: rate,
      slowest_ms: Number(this.#slowestMs.toFixed(2)),
      features: this.#features.size,
    };
  }

  #next(): Uint8Array {
    const { generate, inputBytesMax = INPUT_BYTES_MAX } = this.#target;
    if (generate === undefined || randomBelow(this.#random, 3) > 0)
      return mutate(this.#corpus, this.#random, inputBytesMax);
    const made = generate(this.#random);
    if (randomBelow(this.#random, 2) === 0) return made;
    return mutate([made], this.#random, inputBytesMax);
  }

  async #try(input: Uint8Array): Promise<void> {
    this.#inputs++;
    this.#isNews = false;
    try {
      const ms = await this.#timed(input);
      this.#slowestMs = Math.max(this.#slowestMs, ms);
      if (ms > this.#msMax && (await this.#isSlowAgain(input))) {
        this.#found("hang", `${ms.toFixed(0)} ms`, input);
      }
      const isWorthKeeping = this.#isNews && input.length <= KEPT_BYTES_MAX;
      if (isWorthKeeping && this.#corpus.length < CORPUS_MAX) this.#corpus.push(input.slice());
    } catch (error) {
      const what = messageOf(error);
      if (!this.#findings.isNew(this.#target.name, "crash", what)) return;
      const deadline = Bun.nanoseconds() + MINIMISE_MS * 1e6;
      const smallest = await minimise(
        input,
        async (shorter) => (await this.#crashOf(shorter)) !== null,
        () => Bun.nanoseconds() < deadline,
      );
      this.#found("crash", (await this.#crashOf(smallest)) ?? what, smallest);
    }
  }

  get #msMax(): number {
    return this.#target.stallMs ?? HANG_MS;
  }

  /** Milliseconds of one input, or of its longest turn if `stallMs` limits that; may throw. */
  async #timed(input: Uint8Array): Promise<number> {
    const { watchdog } = this.#options;
    const { stallMs } = this.#target;
    watchdog.begin(this.#target.name, input);
    const start = Bun.nanoseconds();
    // Targets that wait for a socket are judged by the turns of the event loop, not by the wait.
    const turns = stallMs === undefined ? null : watchTurns();
    try {
      const later = this.#target.run(input, this.#saw);
      if (later !== undefined) await later;
      if (turns === null) return (Bun.nanoseconds() - start) / 1e6;
      return turns.longestMs();
    } finally {
      turns?.stop();
      watchdog.end();
    }
  }

  async #crashOf(input: Uint8Array): Promise<string | null> {
    try {
      await this.#timed(input);
      return null;
    } catch (error) {
      return messageOf(error);
    }
  }

  /** Only what is slow every time hangs. */
  async #isSlowAgain(input: Uint8Array): Promise<boolean> {
    for (let i = 0; i < HANG_TRIES; i++) {
      if ((await this.#timed(input)) <= this.#msMax) return false;
    }
    return true;
  }

  #weigh(residentMax: number): void {
    this.#target.settle?.();
    if (process.memoryUsage.rss() <= residentMax) return;
    Bun.gc(true);
    const bytes = process.memoryUsage.rss();
    if (bytes > residentMax) this.#found("memory", `${bytes} bytes resident`, new Uint8Array(0));
  }

  async #close(heapBefore: number): Promise<void> {
    const { settle, close } = this.#target;
    try {
      settle?.();
    } catch (error) {
      this.#found("crash", messageOf(error), new Uint8Array(0));
    }
    await close?.();
    const left = await restOf(heapBefore);
    if (left > LEFT_BYTES_MAX) this.#found("memory", `${left} bytes are left`, new Uint8Array(0));
  }

  #found(kind: FindingKind, what: string, input: Uint8Array): void {
    const { name } = this.#target;
    if (!this.#findings.isNew(name, kind, what)) return;
    const { again } = this.#findings.add(name, kind, what, input);
    this.#options.say(`${name}: ${kind}: ${what}; again with ${again}`);
  }
}

/** What the garbage collector leaves. */
/** What is left once waits have run out: a request that was given up ends with its deadline. */
async function restOf(heapBefore: number): Promise<number> {
  for (let tries = REST_TRIES; ; tries--) {
    const left = heapBytes() - heapBefore;
    if (left <= LEFT_BYTES_MAX || tries === 0) return left;
    await Bun.sleep(REST_MS);
  }
}

function heapBytes(): number {
  Bun.gc(true);
  const { heapSize, extraMemorySize } = heapStats();
  return heapSize + extraMemorySize;
}

/** The time is shared evenly between the targets. */
export async function fuzz(options: FuzzOptions): Promise<FuzzResult> {
  const start = Bun.nanoseconds();
  const findings = new Findings();
  const targets: Record<string, TargetResult> = {};
  for (const name of options.targets) {
    const session = new Session(TARGETS[name]!(), options, findings);
    const result = await session.run(options.seconds / options.targets.length);
    targets[name] = result;
    const { inputs, inputs_per_s, features } = result;
    const text = `${inputs} inputs, ${inputs_per_s} a second, ${features} kinds of answers`;
    options.say(`${name.padEnd(14)} ${text}`);
  }
  const seconds = (Bun.nanoseconds() - start) / 1e9;
  const inputs = Object.values(targets).reduce((sum, { inputs }) => sum + inputs, 0);
  const { list } = findings;
  return {
    seed: options.seed,
    seconds: Number(seconds.toFixed(1)),
    inputs,
    inputs_per_s: Math.round(inputs / seconds),
    crashes: list.filter(({ kind }) => kind !== "hang").length,
    hangs: list.filter(({ kind }) => kind === "hang").length,
    targets,
    findings: list,
  };
}
