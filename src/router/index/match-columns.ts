import type { TargetId } from "../workers.ts";

/** What one target has of a prompt. */
export interface Match {
  readonly target: TargetId;
  readonly device: number;
  readonly host: number;
  readonly disk: number;
}

/** Matches in the port's columns. */
export function columnsOf(matches: readonly Match[]) {
  return {
    targets: Uint16Array.from(matches, ({ target }) => target),
    device: Uint32Array.from(matches, ({ device }) => device),
    host: Uint32Array.from(matches, ({ host }) => host),
    disk: Uint32Array.from(matches, ({ disk }) => disk),
  };
}
