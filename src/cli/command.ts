import type { Clock } from "../core/index.ts";
import type { BuildInfo } from "./build-info.ts";
import type { ExitName } from "./exit-codes.ts";
import type { ArgumentTable, ArgumentValues, FlagTable, FlagValues } from "./flags.ts";
import type { Io } from "./io.ts";

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
