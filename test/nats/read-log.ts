import { join } from "node:path";
import type { ReadWindow } from "./reader.ts";

export type Phase = "calm" | "chaos" | "other";

/** A window lasts two seconds: the first that ends in a phase began before it. */
const WINDOWS_LEFT_OUT = 1;

/** The process that reads from RAM, and what it said in each phase. */
export class ReadLog implements AsyncDisposable {
  readonly #child: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #windows: Record<Phase, ReadWindow[]> = { calm: [], chaos: [], other: [] };
  readonly #read: Promise<void>;
  #phase: Phase = "other";
  #leaveOut = 0;
  #isOver = false;
  /** The process ended by itself. */
  broke = false;

  constructor(socketPath: string) {
    const words = [process.execPath, join(import.meta.dir, "reader.ts"), socketPath];
    this.#child = Bun.spawn(words, { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
    this.#read = this.#readLines();
  }

  enter(phase: Phase): void {
    this.#phase = phase;
    this.#leaveOut = WINDOWS_LEFT_OUT;
  }

  of(phase: Phase): readonly ReadWindow[] {
    return this.#windows[phase];
  }

  /** In all phases together. */
  total(of: "misses" | "wrong" | "reads"): number {
    const all = Object.values(this.#windows).flat();
    return all.reduce((sum, window) => sum + window[of], 0);
  }

  /** Microseconds: the median over the windows of a phase; 0 where it has none. */
  median(phase: Phase, of: "p50" | "p99"): number {
    const values = this.#windows[phase].map((window) => window[of]).sort((a, b) => a - b);
    return Math.round((values[values.length >> 1] ?? 0) * 10) / 10;
  }

  async #readLines(): Promise<void> {
    let rest = "";
    for await (const chunk of this.#child.stdout.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) this.#note(JSON.parse(line) as ReadWindow);
    }
    this.broke = !this.#isOver;
  }

  #note(window: ReadWindow): void {
    const phase = this.#leaveOut-- > 0 ? "other" : this.#phase;
    this.#windows[phase].push(window);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#child.stdin.write("end\n");
    this.#child.stdin.end();
    await this.#child.exited;
    await this.#read;
  }
}
