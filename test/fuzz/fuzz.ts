import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { messageOf, seededRandom } from "../../src/core/index.ts";
import { minimise, mutate } from "./mutate.ts";
import type { Target } from "./target.ts";
import { replyFrames, requestFrames } from "./targets/frames.ts";
import { serverTarget } from "./targets/server.ts";
import { configs, json, manifests, traces } from "./targets/texts.ts";

export const TARGETS: Readonly<Record<string, () => Target>> = {
  requests: requestFrames,
  replies: replyFrames,
  server: serverTarget,
  manifests,
  configs,
  json,
  traces,
};

/** No input may take longer. Slow ones are tried again: the machine has other work. */
const HANG_MS = 100;
const HANG_TRIES = 3;
const INPUTS_A_LOOK = 64;
const FINDINGS_MAX = 5;

export interface Finding {
  readonly target: string;
  readonly kind: "crash" | "hang";
  readonly what: string;
  readonly file: string;
}

export interface TargetResult {
  readonly inputs: number;
  readonly inputs_per_s: number;
  readonly slowest_ms: number;
}

export interface FuzzResult {
  readonly seed: number;
  readonly seconds: number;
  readonly inputs: number;
  readonly inputs_per_s: number;
  readonly crashes: number;
  readonly hangs: number;
  readonly targets: Record<string, TargetResult>;
  readonly findings: Finding[];
}

export interface FuzzOptions {
  readonly seconds: number;
  readonly seed: number;
  readonly targets: readonly string[];
  readonly folder: string;
  readonly say: (line: string) => void;
}

/** Milliseconds that one input takes; throws what the target throws. */
function timed(target: Target, input: Uint8Array): number {
  const start = Bun.nanoseconds();
  target.run(input);
  return (Bun.nanoseconds() - start) / 1e6;
}

function crashOf(target: Target, input: Uint8Array): string | null {
  try {
    target.run(input);
    return null;
  } catch (error) {
    return messageOf(error);
  }
}

/** The shortest of some runs: only what is slow every time hangs. */
function slowAgain(target: Target, input: Uint8Array): boolean {
  for (let i = 0; i < HANG_TRIES; i++) if (timed(target, input) <= HANG_MS) return false;
  return true;
}

function keep(options: FuzzOptions, target: Target, kind: Finding["kind"], input: Uint8Array) {
  mkdirSync(options.folder, { recursive: true });
  const name = `${target.name}-${kind}-${Bun.hash(input).toString(16)}.bin`;
  const file = join(options.folder, name);
  writeFileSync(file, input);
  return file;
}

async function fuzzTarget(target: Target, options: FuzzOptions, findings: Finding[]) {
  const random = seededRandom(options.seed);
  const start = Bun.nanoseconds();
  const end = start + (options.seconds * 1e9) / options.targets.length;
  let inputs = 0;
  let slowest = 0;
  const found = (kind: Finding["kind"], what: string, input: Uint8Array) => {
    const file = keep(options, target, kind, input);
    findings.push({ target: target.name, kind, what, file });
    options.say(`${target.name}: ${kind}: ${what}; again with --replay ${file}`);
  };
  while (Bun.nanoseconds() < end && findings.length < FINDINGS_MAX) {
    for (let i = 0; i < INPUTS_A_LOOK; i++, inputs++) {
      const input = mutate(target.corpus, random);
      try {
        const ms = timed(target, input);
        slowest = Math.max(slowest, ms);
        if (ms > HANG_MS && slowAgain(target, input)) found("hang", `${ms.toFixed(0)} ms`, input);
      } catch (error) {
        const smallest = minimise(input, (shorter) => crashOf(target, shorter) !== null);
        found("crash", messageOf(error), smallest);
        break;
      }
    }
    await new Promise((resolve) => setImmediate(resolve));
  }
  target.settle?.();
  await target.close?.();
  const seconds = (Bun.nanoseconds() - start) / 1e9;
  const rate = Math.round(inputs / seconds);
  options.say(`${target.name.padEnd(10)} ${inputs} inputs, ${rate} a second`);
  return { inputs, inputs_per_s: rate, slowest_ms: Number(slowest.toFixed(2)) };
}

/** The time is shared evenly between the targets. */
export async function fuzz(options: FuzzOptions): Promise<FuzzResult> {
  const start = Bun.nanoseconds();
  const findings: Finding[] = [];
  const targets: Record<string, TargetResult> = {};
  for (const name of options.targets) {
    targets[name] = await fuzzTarget(TARGETS[name]!(), options, findings);
  }
  const seconds = (Bun.nanoseconds() - start) / 1e9;
  const inputs = Object.values(targets).reduce((sum, { inputs }) => sum + inputs, 0);
  return {
    seed: options.seed,
    seconds: Number(seconds.toFixed(1)),
    inputs,
    inputs_per_s: Math.round(inputs / seconds),
    crashes: findings.filter(({ kind }) => kind === "crash").length,
    hangs: findings.filter(({ kind }) => kind === "hang").length,
    targets,
    findings,
  };
}
