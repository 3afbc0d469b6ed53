import type { Clock } from "../core/index.ts";
import type { Sink } from "./io.ts";

const REDRAW_MS = 100;

/** A few lines on a terminal that are drawn over again and again. */
export interface LiveView {
  /** Draws the lines where a redraw is due; `make` is called only then. */
  draw(make: () => readonly string[]): void;
  /** Takes the lines away. */
  clear(): void;
}

export function createLiveView(sink: Sink, clock: Clock): LiveView {
  let drawn = 0;
  let drawnMs = Number.NEGATIVE_INFINITY;
  const erase = () => {
    if (drawn > 0) sink.write(`\r\x1b[${drawn}A\x1b[J`);
    drawn = 0;
  };
  return {
    draw(make) {
      const nowMs = clock.monotonicMs();
      if (nowMs - drawnMs < REDRAW_MS) return;
      drawnMs = nowMs;
      const lines = make();
      erase();
      // A line that wraps could not be taken back.
      for (const line of lines) sink.write(`${line.slice(0, sink.columns - 1)}\n`);
      drawn = lines.length;
    },
    clear: erase,
  };
}

/** `[#####.....]`, `width` characters between the brackets. */
export function bar(share: number, width: number): string {
  const filled = Math.round(Math.min(1, Math.max(0, share)) * width);
  return `[${"#".repeat(filled)}${".".repeat(width - filled)}]`;
}
