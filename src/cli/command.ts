import { type Clock, type ErrorCode, HearthError } from "../core/index.ts";
import type { Kind } from "./kinds.ts";
import type { BuildInfo } from "./run.ts";
import type { Io } from "./terminal.ts";

export interface Example {
  /** What stands behind `hearth `. */
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
   * Fires on the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once. Before the
   * first call signals do what they do by default, so only commands with something to clean up ask
   * for it.
   */
  interrupt(): AbortSignal;
}

/** What one file of `commands/` exports as `command`. */
export interface Command<
  Flags extends FlagTable = FlagTable,
  Arguments extends ArgumentTable = ArgumentTable,
> {
  /** Paragraphs of the help page, under the summary. */
  readonly description: readonly string[];
  readonly flags: Flags;
  readonly arguments: Arguments;
  readonly examples: readonly Example[];
  /** Ways to end beside `ok`, `failed` and `usage`. */
  readonly exits: readonly ExitName[];
  /** Does the work. A HearthError it throws is printed and decides the exit code. */
  run(context: CommandContext<Flags, Arguments>): Promise<ExitName>;
}

/** Infers the types of flags and arguments for `run`. */
export function defineCommand<const Flags extends FlagTable, const Arguments extends ArgumentTable>(
  command: Command<Flags, Arguments>,
): Command<Flags, Arguments> {
  return command;
}

/**
 * What a command takes under one name. Flags are declared in camelCase and written in kebab-case:
 * `blockBytes` is `--block-bytes`.
 */
export interface Flag<T> {
  readonly help: string;
  /** Null: a switch, which takes no value. */
  readonly kind: Kind<unknown> | null;
  /** What the command gets where the flag is not given; absent: the flag must be given. */
  readonly standard: { readonly value: T } | null;
  /** Shown in help; null where there is nothing to show. */
  readonly standardText: string | null;
  /** May be given several times; the value is a list. */
  readonly repeated: boolean;
}

/** An argument without a name, by its place. */
export interface Argument<T> {
  readonly help: string;
  readonly kind: Kind<unknown>;
  readonly presence: "required" | "optional" | "rest";
  /** Never there at run time: carries the type. */
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

/** Null where it is not given. */
export function optional<T>(kind: Kind<T>, help: string): Flag<T | null> {
  return { help, kind, standard: { value: null }, standardText: null, repeated: false };
}

export function withDefault<T>(kind: Kind<T>, value: T, help: string): Flag<T> {
  return { help, kind, standard: { value }, standardText: kind.show(value), repeated: false };
}

export function required<T>(kind: Kind<T>, help: string): Flag<T> {
  return { help, kind, standard: null, standardText: null, repeated: false };
}

/** May be given several times; an empty list where it is not. */
export function repeated<T>(kind: Kind<T>, help: string): Flag<readonly T[]> {
  return { help, kind, standard: { value: [] }, standardText: null, repeated: true };
}

/** On or off, off unless given. */
export function toggle(help: string): Flag<boolean> {
  return { help, kind: null, standard: { value: false }, standardText: null, repeated: false };
}

export const jsonFlag = toggle("print results as JSON, one document a line");

export function requiredArgument<T>(kind: Kind<T>, help: string): Argument<T> {
  return { help, kind, presence: "required" };
}

export function optionalArgument<T>(kind: Kind<T>, help: string): Argument<T | null> {
  return { help, kind, presence: "optional" };
}

/** All arguments that are left; the last one of a command. */
export function restArguments<T>(kind: Kind<T>, help: string): Argument<readonly T[]> {
  return { help, kind, presence: "rest" };
}

/** `blockBytes` → `--block-bytes`. */
export function flagName(name: string): string {
  return `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** How `hearth` can end. The numbers are stable: scripts and service managers rely on them. */
export const EXIT_CODES = {
  ok: { code: 0, meaning: "done" },
  failed: { code: 1, meaning: "failed; standard error says why" },
  usage: { code: 2, meaning: "the command line was refused" },
  configRefused: { code: 3, meaning: "the configuration was refused" },
  hostCannot: { code: 4, meaning: "this host cannot: native library, memory, kernel" },
  wrongBytes: { code: 5, meaning: "bytes read were not the bytes written" },
  partly: { code: 6, meaning: "done in part: blocks are missing, held, deferred or refused" },
  refused: { code: 7, meaning: "the agent refused the command; nothing changed" },
  noAnswer: { code: 8, meaning: "no answer: nobody is there, or the deadline passed" },
  interrupted: { code: 130, meaning: "interrupted by SIGINT, SIGTERM or SIGHUP" },
} as const satisfies Record<string, { code: number; meaning: string }>;

export type ExitName = keyof typeof EXIT_CODES;

/** Which way out a fault takes. */
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
