import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { ensureHost, ensureStandIns } from "../../scripts/lib/native-build.ts";
import { ensureNatsServer } from "../../scripts/lib/nats-server.ts";
import { findPython } from "../../scripts/lib/python.ts";
import { stringifyJson } from "../../src/core/index.ts";

/** An option of a lane. */
export interface LaneOption<T> {
  readonly takesValue: boolean;
  /** Reads the given text; undefined: the option is absent. Throws with the reason. */
  readonly read: (text: string | undefined) => T;
}

type LaneOptions = Readonly<Record<string, LaneOption<unknown>>>;
type Values<O extends LaneOptions> = {
  readonly [Name in keyof O]: O[Name] extends LaneOption<infer T> ? T : never;
};

/** A switch; false if it is absent. */
export function flag(): LaneOption<boolean> {
  return { takesValue: false, read: (text) => text !== undefined };
}

export function text(): LaneOption<string | null>;
export function text(byDefault: string): LaneOption<string>;
export function text(byDefault: string | null = null): LaneOption<string | null> {
  return { takesValue: true, read: (given) => given ?? byDefault };
}

/** A whole number of at least `min`. */
export function whole(min: number): LaneOption<number | null>;
export function whole(min: number, byDefault: number): LaneOption<number>;
export function whole(min: number, byDefault: number | null = null): LaneOption<number | null> {
  return {
    takesValue: true,
    read(given) {
      if (given === undefined) return byDefault;
      const value = Number(given);
      if (given !== "" && Number.isSafeInteger(value) && value >= min) return value;
      throw new Error(`expected a whole number of at least ${min}`);
    },
  };
}

/** A time in seconds above 0, whole or not. */
export function seconds(byDefault: number): LaneOption<number> {
  return {
    takesValue: true,
    read(given) {
      const value = given === undefined ? byDefault : Number(given);
      if (given !== "" && Number.isFinite(value) && value > 0) return value;
      throw new Error("expected a number of seconds above 0");
    },
  };
}

/** One of these names. */
export function oneOf<T extends string>(names: readonly T[]): LaneOption<T | null>;
export function oneOf<T extends string>(names: readonly T[], byDefault: T): LaneOption<T>;
export function oneOf<T extends string>(
  names: readonly T[],
  byDefault: T | null = null,
): LaneOption<T | null> {
  return {
    takesValue: true,
    read(given) {
      if (given === undefined) return byDefault;
      const found = names.find((name) => name === given);
      if (found !== undefined) return found;
      throw new Error(`expected one of ${names.join(", ")}`);
    },
  };
}

/** Ends a lane because the host lacks something; with REQUIRE_`variable`=1 the lane fails. */
export class LaneSkip extends Error {
  override readonly name = "LaneSkip";
  readonly why: string;
  readonly variable: string;

  constructor(why: string, variable: string) {
    super(why);
    this.why = why;
    this.variable = variable;
  }
}

/** Ends a lane with exit code 2. */
export class LaneUsage extends Error {
  override readonly name = "LaneUsage";
}

/** The findings of a lane. */
export interface LaneResult {
  /** Broken promises, one per line; empty if all is well. */
  readonly violations: readonly string[];
  /** Printed on one line of standard output, with `--json` alone or with `endsWithJson`. */
  readonly json: unknown;
  /** Printed without `--json`. */
  readonly text?: string;
}

/** Services of the runner. */
export interface LaneHost {
  readonly isJson: boolean;
  /** Prints a line of progress on standard error. */
  say(line: string): void;
  /** Prints a line of the report, unless the report is JSON. */
  print(line: string): void;
  /** Creates a folder that is removed when the process ends. Default: below the temporary folder. */
  folder(below?: string): string;
}

/** A run for people and for CI that is not part of `./dev test`: longer, larger or on real engines. */
export interface Lane<O extends LaneOptions = LaneOptions> {
  /** The text of `--help`. */
  readonly help: string;
  readonly options: O;
  /** The result is printed as JSON with and without `--json`. */
  readonly endsWithJson?: boolean;
  /** Rejects with LaneSkip, LaneUsage, or what went wrong. */
  run(values: Values<O>, host: LaneHost): Promise<LaneResult>;
}

/** Infers the types of the options. */
export function defineLane<O extends LaneOptions>(lane: Lane<O>): Lane {
  return lane as unknown as Lane;
}

/**
 * Runs a lane with these arguments. Returns the exit code: 0 all is well or skipped, 1 it is not,
 * 2 wrong usage.
 */
export async function runLane(name: string, lane: Lane, words: readonly string[]): Promise<number> {
  const folders: string[] = [];
  const cleanUp = () => {
    for (const folder of folders) rmSync(folder, { recursive: true, force: true });
  };
  for (const [signal, code] of [["SIGINT", 130] as const, ["SIGTERM", 143] as const]) {
    process.once(signal, () => {
      cleanUp();
      process.exit(code);
    });
  }
  const json = words.includes("--json");
  const host: LaneHost = {
    isJson: json,
    say: (line) => void process.stderr.write(`${name}: ${line}\n`),
    print: (line) => (json ? undefined : console.log(line)),
    folder(below = tmpdir()) {
      const folder = mkdtempSync(join(below, `hearth-${name}-`));
      folders.push(folder);
      return folder;
    },
  };
  try {
    const values = readValues(lane, words);
    if (values === null) {
      console.log(lane.help.trim());
      return 0;
    }
    const { violations, json: result, text: shown } = await lane.run(values, host);
    for (const violation of violations) console.error(`violation: ${violation}`);
    if (shown !== undefined) host.print(shown);
    if (json || lane.endsWithJson === true) console.log(stringifyJson(result));
    return violations.length === 0 ? 0 : 1;
  } catch (thrown) {
    if (thrown instanceof LaneUsage) {
      console.error(`${thrown.message}\n\n${lane.help.trim()}`);
      return 2;
    }
    if (!(thrown instanceof LaneSkip)) throw thrown;
    const isRequired = process.env[`REQUIRE_${thrown.variable}`] === "1";
    console.error(`${isRequired ? "required" : "skipped"}: ${name}: ${thrown.why}`);
    if (json || lane.endsWithJson === true) console.log(JSON.stringify({ skipped: thrown.why }));
    return isRequired ? 1 : 0;
  } finally {
    cleanUp();
  }
}

/** Null for `--help`. Throws LaneUsage. */
function readValues(lane: Lane, words: readonly string[]): Values<LaneOptions> | null {
  const known = Object.fromEntries(
    Object.entries(lane.options).map(([name, { takesValue }]) => {
      return [name, { type: takesValue ? "string" : "boolean" } as const];
    }),
  );
  const options = {
    ...known,
    json: { type: "boolean" },
    help: { type: "boolean", short: "h" },
  } as const;
  let given: Record<string, string | boolean | undefined>;
  try {
    given = parseArgs({ args: [...words], options, strict: true }).values as typeof given;
  } catch (thrown) {
    throw new LaneUsage(thrown instanceof Error ? thrown.message : String(thrown));
  }
  if (given.help === true) return null;
  return Object.fromEntries(
    Object.entries(lane.options).map(([name, option]) => {
      const value = given[name];
      try {
        return [name, option.read(value === undefined ? undefined : String(value))];
      } catch (thrown) {
        throw new LaneUsage(`--${name} ${value}: ${(thrown as Error).message}`);
      }
    }),
  );
}

/** Builds the native library. Rejects with LaneSkip if that is impossible here. */
export async function needNative(): Promise<void> {
  const native = await ensureHost();
  if (native.kind === "failed") throw new Error(`${native.why}\n${native.output}`);
  if (native.kind === "skipped") throw new LaneSkip(native.why, "NATIVE");
}

/** Builds the native library and the stand-ins of GPU and RDMA drivers. */
export async function needStandIns(): Promise<void> {
  await needNative();
  const built = await ensureStandIns();
  if (built.kind === "failed") throw new Error(`${built.why}\n${built.output}`);
  if (built.kind === "skipped") throw new LaneSkip(built.why, "NATIVE");
}

/** Resolves to the path of a nats-server. Rejects with LaneSkip if none can be had. */
export async function needNats(): Promise<string> {
  const nats = await ensureNatsServer();
  if (nats.kind === "skipped") throw new LaneSkip(nats.why, "NATS");
  return nats.path;
}

/** Returns the path of a Python interpreter. Throws LaneSkip if there is none. */
export function needPython(): string {
  const python = findPython();
  if (python.kind === "skipped") throw new LaneSkip(python.why, "PYTHON");
  return python.path;
}

/** A progress line that is rewritten on a terminal, and printed now and then elsewhere. */
export function progress(name: string, everyMs = 5_000): (text: string, isLast?: boolean) => void {
  const { isTTY } = process.stderr;
  let shownMs = Number.NEGATIVE_INFINITY;
  return (line, isLast = false) => {
    const nowMs = performance.now();
    if (!isTTY && !isLast && nowMs - shownMs < everyMs) return;
    shownMs = nowMs;
    process.stderr.write(isTTY ? `\r${name}: ${line} ${isLast ? "\n" : ""}` : `${name}: ${line}\n`);
  };
}
