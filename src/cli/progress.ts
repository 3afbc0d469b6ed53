import type { Clock } from "../core/index.ts";
import type { Io } from "./io.ts";

/** Tells on standard error how far a long command is. */
export interface Progress {
  /** What is going on now, in one line. Cheap to call often: most calls print nothing. */
  update(text: string): void;
  /** Ends the updating line; `text`, where given, stays on the screen. */
  end(text?: string): void;
}

const REDRAW_MS = 100;
const PLAIN_MS = 10_000;
const CLEAR_LINE = "\r\x1b[2K";

export interface ProgressOptions {
  readonly io: Io;
  readonly clock: Clock;
  /** Results are wanted as JSON: silent, unless somebody is watching. */
  readonly json: boolean;
}

/** One updating line on a terminal, a plain line every 10 s elsewhere. */
export function createProgress({ io, clock, json }: ProgressOptions): Progress {
  const { err } = io;
  if (json && !err.isTerminal) return { update: () => undefined, end: () => undefined };
  return err.isTerminal ? redrawn(err, clock) : plain(err, clock);
}

function redrawn(err: Io["err"], clock: Clock): Progress {
  let drawnMs = Number.NEGATIVE_INFINITY;
  return {
    update(text) {
      const nowMs = clock.monotonicMs();
      if (nowMs - drawnMs < REDRAW_MS) return;
      drawnMs = nowMs;
      // A line that wraps could not be taken back.
      err.write(`${CLEAR_LINE}${text.slice(0, err.columns - 1)}`);
    },
    end(text) {
      const isDrawn = drawnMs > Number.NEGATIVE_INFINITY;
      err.write(`${isDrawn ? CLEAR_LINE : ""}${text === undefined ? "" : `${text}\n`}`);
    },
  };
}

function plain(err: Io["err"], clock: Clock): Progress {
  let printedMs = clock.monotonicMs();
  return {
    update(text) {
      const nowMs = clock.monotonicMs();
      if (nowMs - printedMs < PLAIN_MS) return;
      printedMs = nowMs;
      err.write(`${text}\n`);
    },
    end(text) {
      if (text !== undefined) err.write(`${text}\n`);
    },
  };
}
