import { readFileSync } from "node:fs";
import { join } from "node:path";
import { HearthError, nearestWord, systemClock } from "../core/index.ts";
import { CATALOGUE, type Entry } from "./catalogue.ts";
import type { ArgumentTable, CommandContext, FlagTable } from "./command.ts";
import { EXIT_CODES, type ExitName, exitOf } from "./command.ts";
import { commandHelp, generalHelp, groupHelp } from "./help.ts";
import { parseWords } from "./parse.ts";
import type { Io } from "./terminal.ts";

/**
 * Runs the command that `words` name (without the program's name). Returns the exit code; never
 * throws.
 */
export async function runCli(
  words: readonly string[],
  io: Io,
  catalogue: readonly Entry[] = CATALOGUE,
): Promise<number> {
  try {
    return EXIT_CODES[await runWords(words, io, catalogue)].code;
  } catch (thrown) {
    return EXIT_CODES[report(io, "hearth", thrown)].code;
  }
}

async function runWords(
  words: readonly string[],
  io: Io,
  catalogue: readonly Entry[],
): Promise<ExitName> {
  const [first] = words;
  if (first === "help") return runWords([...words.slice(1), "--help"], io, catalogue);
  if (first === "--version") {
    io.out.write(`${versionLine(buildInfo())}\n`);
    return "ok";
  }
  const general = () => generalHelp(catalogue, versionLine(buildInfo()), io.out.columns);
  if (first === undefined) {
    io.err.write(general());
    return "usage";
  }
  if (first === "--help" || first === "-h") {
    io.out.write(general());
    return "ok";
  }
  const entry = findEntry(words, catalogue);
  if (entry !== null) return runEntry(entry, words.slice(entry.name.split(" ").length), io);
  return explainGroup(words, io, catalogue);
}

function findEntry(words: readonly string[], catalogue: readonly Entry[]): Entry | null {
  const two = words.slice(0, 2).join(" ");
  return catalogue.find(({ name }) => name === two || name === words[0]) ?? null;
}

/**
 * Handles words that name no command: prints the list of a group (`bench`), or an error with a
 * suggestion.
 */
function explainGroup(words: readonly string[], io: Io, catalogue: readonly Entry[]): ExitName {
  const [first = "", second] = words;
  const inGroup = catalogue.filter(({ name }) => name.startsWith(`${first} `));
  const wantsHelp = second === "--help" || second === "-h";
  if (inGroup.length > 0 && (second === undefined || wantsHelp)) {
    (wantsHelp ? io.out : io.err).write(groupHelp(first, inGroup, io.out.columns));
    return wantsHelp ? "ok" : "usage";
  }
  const isGroup = inGroup.length > 0;
  const start = isGroup ? `${first} ` : "";
  const given = (isGroup ? second : first) ?? "";
  const names = (isGroup ? inGroup : catalogue).map(({ name }) => name.slice(start.length));
  const meant = nearestWord(given, names);
  const fix = meant === null ? {} : { fix: `did you mean \`hearth ${start}${meant}\`` };
  const what = `unknown command "${start}${given.slice(0, 100)}"`;
  return report(io, `hearth ${start}`.trimEnd(), new HearthError("USAGE", what, fix));
}

async function runEntry(entry: Entry, words: readonly string[], io: Io): Promise<ExitName> {
  const name = `hearth ${entry.name}`;
  try {
    const command = await entry.load();
    const parsed = parseWords(words, command);
    if (parsed.kind === "help") {
      io.out.write(commandHelp(entry, command, io.out.columns));
      return "ok";
    }
    let signal: AbortSignal | undefined;
    // The parser has checked all names, and the kind of each flag has parsed its value.
    const context = {
      flags: parsed.flags,
      arguments: parsed.arguments,
      io,
      clock: systemClock,
      build: buildInfo(),
      interrupt: () => {
        signal ??= interruptSignal();
        return signal;
      },
    } as CommandContext<FlagTable, ArgumentTable>;
    return await command.run(context);
  } catch (thrown) {
    return report(io, name, thrown);
  }
}

/**
 * Prints an error: one line for a known error, the stack trace for an unexpected one. Returns the
 * exit code's name.
 */
function report(io: Io, name: string, thrown: unknown): ExitName {
  if (isSystemError(thrown)) {
    io.err.write(`${name}: ${thrown.message}\n`);
    return "failed";
  }
  if (!(thrown instanceof HearthError)) {
    const trace = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
    io.err.write(`${name}: an unexpected error, please report it\n${trace}\n`);
    return "failed";
  }
  io.err.write(`${name}: ${thrown.text}\n`);
  if (thrown.code === "USAGE") io.err.write(`see \`${name} --help\`\n`);
  if (thrown.code === "INTERNAL") io.err.write(`${thrown.stack}\n`);
  return exitOf(thrown);
}

/**
 * Returns whether the error comes from a system call (no space, no such file), so that its message
 * suffices.
 */
function isSystemError(thrown: unknown): thrown is NodeJS.ErrnoException {
  return thrown instanceof Error && "syscall" in thrown && "errno" in thrown;
}

/** Version of the running executable. */
export interface BuildInfo {
  readonly version: string;
  /**
   * Commit of the sources: twelve hex digits, with `-dirty` if the sources had changes; `checkout`
   * if run from sources.
   */
  readonly commit: string;
  readonly runtime: string;
}

// The build replaces this name by the version text.
declare const HEARTH_VERSION: string;
declare const HEARTH_COMMIT: string;

function checkoutVersion(): string {
  const manifest = readFileSync(join(import.meta.dir, "../../package.json"), "utf8");
  return (JSON.parse(manifest) as { version: string }).version;
}

function buildInfo(): BuildInfo {
  return {
    version: typeof HEARTH_VERSION === "undefined" ? checkoutVersion() : HEARTH_VERSION,
    commit: typeof HEARTH_COMMIT === "undefined" ? "checkout" : HEARTH_COMMIT,
    runtime: `Bun ${Bun.version}`,
  };
}

/** Returns the version line, such as `hearth 0.1.0 (0123456789ab, Bun 1.4.5)`. */
function versionLine(build: BuildInfo): string {
  return `hearth ${build.version} (${build.commit}, ${build.runtime})`;
}

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/**
 * Signals within this many milliseconds of the first count as one: a terminal signals its whole
 * process group, and wrapper programs forward the signal again.
 */
const SAME_WISH_MS = 500;

/**
 * Returns a signal that aborts with ABORTED on SIGINT, SIGTERM or SIGHUP. A second signal ends the
 * process at once, without cleanup.
 */
function interruptSignal(): AbortSignal {
  const controller = new AbortController();
  let wishedMs = 0;
  for (const name of SIGNALS) {
    process.on(name, () => {
      const nowMs = systemClock.monotonicMs();
      if (controller.signal.aborted) {
        if (nowMs - wishedMs > SAME_WISH_MS) process.exit(EXIT_CODES.interrupted.code);
        return;
      }
      wishedMs = nowMs;
      controller.abort(new HearthError("ABORTED", `interrupted by ${name}`));
    });
  }
  return controller.signal;
}
