const DATA = Buffer.from("data:");
const DONE = Buffer.from("[DONE]");
const USAGE = Buffer.from('"completion_tokens":');
const LF = 0x0a;

/**
 * Counts what a worker generated. Each event counts as a token until the worker itself says how
 * many there are: engines send one event a step, and `usage` at the end or with each event.
 */
export class OutputCount {
  /** The worker has said `[DONE]`: clients may leave now without missing anything. */
  isDone = false;
  #events = 0;
  #told: number | null = null;

  get tokens(): number {
    return this.#told ?? this.#events;
  }

  /** Whole events; whether there was one with content. */
  addEvents(bytes: Uint8Array<ArrayBuffer>): boolean {
    const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    let found = 0;
    for (let at = view.indexOf(DATA); at >= 0; at = view.indexOf(DATA, at + 5)) {
      if (at > 0 && view[at - 1] !== LF) continue;
      const start = view[at + 5] === 0x20 ? at + 6 : at + 5;
      if (view.subarray(start, start + DONE.length).equals(DONE)) this.isDone = true;
      else found++;
    }
    this.#events += found;
    this.addUsage(view);
    return found > 0;
  }

  /** `usage` of an answer, or of an event. */
  addUsage(view: Buffer): void {
    const at = view.lastIndexOf(USAGE);
    if (at < 0) return;
    const digits = /^ *([0-9]{1,9})/.exec(view.toString("latin1", at + 20, at + 32));
    if (digits !== null) this.#told = Number(digits[1]);
  }
}
