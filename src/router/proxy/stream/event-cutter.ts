const LF = 0x0a;
const CR = 0x0d;

/** An event that is longer is passed on in parts. */
const HELD_MAX = 256 * 1024;

/**
 * Cuts a stream of server-sent events behind whole events, so that what broke off in the middle of
 * one is never passed on. Bytes are neither changed nor reordered.
 */
export class EventCutter {
  #held: Uint8Array<ArrayBuffer>[] = [];
  #heldBytes = 0;
  /** Whether the next byte begins a line: a line that ends at once ends an event. */
  #isLineEmpty = true;
  /** What a CR just before the next byte ended: an LF would belong to the same line's end. */
  #ended: "nothing" | "line" | "event" = "nothing";

  /** All whole events there are now, in order; empty where none has ended. */
  push(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer>[] {
    const cut = this.#endOfEvents(bytes);
    if (cut === 0) {
      this.#hold(bytes);
      return this.#heldBytes > HELD_MAX ? this.takeHeld() : [];
    }
    const whole = this.takeHeld();
    whole.push(cut === bytes.length ? bytes : bytes.subarray(0, cut));
    if (cut < bytes.length) this.#hold(bytes.subarray(cut));
    return whole;
  }

  takeHeld(): Uint8Array<ArrayBuffer>[] {
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    return held;
  }

  #hold(bytes: Uint8Array<ArrayBuffer>): void {
    this.#held.push(bytes);
    this.#heldBytes += bytes.length;
  }

  /** Where the last event that ends in `bytes` has its end; 0: none does. */
  #endOfEvents(bytes: Uint8Array): number {
    let [end, isEmpty, ended] = [0, this.#isLineEmpty, this.#ended];
    for (let at = 0; at < bytes.length; at++) {
      const byte = bytes[at]!;
      if (byte === LF && ended !== "nothing") {
        if (ended === "event") end = at + 1;
        ended = "nothing";
        continue;
      }
      ended = "nothing";
      if (byte !== LF && byte !== CR) {
        isEmpty = false;
        at = nextLineEnd(bytes, at) - 1;
        continue;
      }
      if (isEmpty) end = at + 1;
      if (byte === CR) ended = isEmpty ? "event" : "line";
      isEmpty = true;
    }
    [this.#isLineEmpty, this.#ended] = [isEmpty, ended];
    return end;
  }
}

/** Of the line that goes on at `at`. */
function nextLineEnd(bytes: Uint8Array, at: number): number {
  const lf = bytes.indexOf(LF, at);
  const end = lf < 0 ? bytes.length : lf;
  const cr = bytes.subarray(at, end).indexOf(CR);
  return cr < 0 ? end : at + cr;
}
