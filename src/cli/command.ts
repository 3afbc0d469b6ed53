import { readFile } from "node:fs/promises";
import {
  type Clock,
  type ErrorCode,
  HearthError,
  type Kind,
  messageOf,
  textKind,
} from "../core/index.ts";
import type { BuildInfo } from "./run.ts";
import type { Io } from "./terminal.ts";

export interface Example {
  /** The example's command line, without the leading `hearth `. */
  readonly words: string;
  readonly what: string;
}

export interface CommandContext<Flags, Arguments> {
  readonly flags: FlagValues<Flags>;
  readonly arguments: ArgumentValues<Arguments>;
  readonly io: Io;
  readonly clock: Clock;
  readonly build: BuildInfo;
  /**
   * Returns a signal that aborts on the first SIGINT, SIGTERM or SIGHUP; a second signal ends the
   * process at once. Before the first call, signals end the process as usual, so only commands that
   * must clean up call this.
   */
  interrupt(): AbortSignal;
}

/** One subcommand, exported by a file of `commands/`. */
export interface Command<
  Flags extends FlagTable = FlagTable,
  Arguments extends ArgumentTable = ArgumentTable,
> {
  /** Paragraphs of the help page, printed below the summary. */
  readonly description: readonly string[];
  readonly flags: Flags;
  readonly arguments: Arguments;
  readonly examples: readonly Example[];
  /** Exit codes of this command in addition to `ok`, `failed` and `usage`. */
  readonly exits: readonly ExitName[];
  /**
   * Runs the command and returns its exit code's name. A thrown HearthError is printed and
   * determines the exit code.
   */
  run(context: CommandContext<Flags, Arguments>): Promise<ExitName>;
}

/**
 * Returns the command unchanged; infers the types of the flags and arguments that `run` receives.
 */
export function defineCommand<const Flags extends FlagTable, const Arguments extends ArgumentTable>(
  command: Command<Flags, Arguments>,
): Command<Flags, Arguments> {
  return command;
}

/**
 * A flag of a command. Flags are declared in camelCase and written in kebab-case: `blockBytes` is
 * `--block-bytes`.
 */
export interface Flag<T> {
  readonly help: string;
  /** How the flag's value is parsed; null for a switch, which takes no value. */
  readonly kind: Kind<unknown> | null;
  /** Value if the flag is not given; null if the flag is required. */
  readonly defaultValue: { readonly value: T } | null;
  /** The default as shown on the help page; null if it is not shown. */
  readonly defaultText: string | null;
  /** True if the flag may be given several times; its value is then a list. */
  readonly repeated: boolean;
}

/** A positional argument of a command. */
export interface Argument<T> {
  readonly help: string;
  readonly kind: Kind<unknown>;
  readonly presence: "required" | "optional" | "rest";
  /** Carries the value's type for the compiler; never set at run time. */
  readonly type?: T;
}

export type FlagTable = Readonly<Record<string, Flag<unknown>>>;
export type ArgumentTable = Readonly<Record<string, Argument<unknown>>>;

export type FlagValues<Table> = {
  readonly [Name in keyof Table]: Table[Name] extends Flag<infer T> ? T : never;
};
export type ArgumentValues<Table> = {
  readonly [Name in keyof Table]: Table[Name] extends Argument<infer T> ? T : never;
};

/** A flag whose value is null if it is not given. */
export function optional<T>(kind: Kind<T>, help: string): Flag<T | null> {
  return { help, kind, defaultValue: { value: null }, defaultText: null, repeated: false };
}

export function withDefault<T>(kind: Kind<T>, value: T, help: string): Flag<T> {
  return {
    help,
    kind,
    defaultValue: { value },
    defaultText: String((kind.show ?? kind.write)(value)),
    repeated: false,
  };
}

export function required<T>(kind: Kind<T>, help: string): Flag<T> {
  return { help, kind, defaultValue: null, defaultText: null, repeated: false };
}

/** Declares a flag that may be given several times. Its value is the list of all given values. */
export function repeated<T>(kind: Kind<T>, help: string): Flag<readonly T[]> {
  return { help, kind, defaultValue: { value: [] }, defaultText: null, repeated: true };
}

/** Declares a switch: true if given, else false. */
export function toggle(help: string): Flag<boolean> {
  return { help, kind: null, defaultValue: { value: false }, defaultText: null, repeated: false };
}

/** Kinds of text values that the flags of several commands take. */
export const fileKind = textKind("FILE");
export const folderKind = textKind("DIR");
export const urlKind = textKind("URL");
export const nameKind = textKind("NAME");

/** The text of a file that the command line names. Throws USAGE. */
export async function fileText(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    throw new HearthError("USAGE", `${path} cannot be read: ${messageOf(cause)}`, { cause });
  }
}

export const jsonFlag = toggle("print results as JSON, one document a line");

export function requiredArgument<T>(kind: Kind<T>, help: string): Argument<T> {
  return { help, kind, presence: "required" };
}

export function optionalArgument<T>(kind: Kind<T>, help: string): Argument<T | null> {
  return { help, kind, presence: "optional" };
}

/**
 * Declares an argument that takes all remaining words. It must be the last argument of a command.
 */
export function restArguments<T>(kind: Kind<T>, help: string): Argument<readonly T[]> {
  return { help, kind, presence: "rest" };
}

/** Returns a flag as written on the command line: `blockBytes` → `--block-bytes`. */
export function flagName(name: string): string {
  return `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/**
 * Exit codes of `hearth`. The numbers never change, because scripts and service managers rely on
 * them.
 */
export const EXIT_CODES = {
  ok: { code: 0, meaning: "done" },
  failed: { code: 1, meaning: "failed; standard error says why" },
  usage: { code: 2, meaning: "the command line was refused" },
  configRefused: { code: 3, meaning: "the configuration was refused" },
  hostCannot: { code: 4, meaning: "the host lacks a requirement: native library, memory, kernel" },
  wrongBytes: { code: 5, meaning: "bytes read were not the bytes written" },
  partly: { code: 6, meaning: "done in part: blocks are missing, held, deferred or refused" },
  refused: { code: 7, meaning: "the agent refused the command; nothing changed" },
  noAnswer: { code: 8, meaning: "no answer: nothing listens, or the deadline passed" },
  interrupted: { code: 130, meaning: "interrupted by SIGINT, SIGTERM or SIGHUP" },
} as const satisfies Record<string, { code: number; meaning: string }>;

export type ExitName = keyof typeof EXIT_CODES;

/** The exit code's name for each error code. */
export const EXIT_OF_ERROR = {
  CONFIG_INVALID: "configRefused",
  USAGE: "usage",
  NATIVE_UNAVAILABLE: "hostCannot",
  NATIVE_ABI_MISMATCH: "hostCannot",
  NATIVE_FAILED: "failed",
  LANES_FAILED: "failed",
  ARENA_UNAVAILABLE: "hostCannot",
  SSD_UNAVAILABLE: "hostCannot",
  SSD_FOREIGN: "failed",
  SSD_IN_USE: "failed",
  INDEX_IN_USE: "failed",
  INDEX_FOREIGN: "failed",
  INDEX_FAILED: "failed",
  SOCKET_IN_USE: "failed",
  ENGINE_PROTOCOL: "failed",
  ENGINE_REFUSED: "failed",
  ENGINE_CLOSED: "failed",
  DEADLINE: "failed",
  ABORTED: "interrupted",
  ZMTP_UNAVAILABLE: "failed",
  ROUTER_FULL: "failed",
  TRACE_INVALID: "failed",
  LIMIT: "failed",
  UNSUPPORTED: "hostCannot",
  INTERNAL: "failed",
} as const satisfies Record<ErrorCode, ExitName>;

export function exitOf(thrown: unknown): ExitName {
  return thrown instanceof HearthError ? EXIT_OF_ERROR[thrown.code] : "failed";
}
