import { assert } from "../../core/index.ts";
import { checkHeader, emptyFrame, type Frame, type FrameDirection, readHeader } from "./frame.ts";
import { FrameStatus, HEADER_BYTES } from "./layout.ts";
import { type Refusal, refusal } from "./refusal.ts";

/** Takes one frame; answers false to have the frames behind it held back until `resume`. */
export type FrameSink = (frame: Frame) => boolean;

/**
 * Cuts a byte stream into frames. Chunks may begin and end anywhere. A frame that lies whole in a
 * chunk is handed on in place; only what crosses a chunk's end, or is held back, is copied, each
 * byte once (amortised). Nothing of a chunk is referenced after `push` returned.
 */
export interface FrameReader {
  /**
   * Gives every complete frame to `sink`, in order. The answer is null, or the fault that ends this
   * stream; from then on every call answers the same fault and reads nothing.
   */
  push(chunk: Uint8Array, sink: FrameSink): Refusal | null;
  /** Holds back what comes, as a sink's false does. */
  hold(): void;
  /** Goes on with what was held back since a sink answered false. */
  resume(sink: FrameSink): Refusal | null;
  /** Bytes kept: the beginning of an unfinished frame, and what was held back. */
  readonly heldBytes: number;
  /** True from a sink's false, or `hold`, until `resume`. */
  readonly holding: boolean;
}

export interface FrameReaderOptions {
  readonly direction: FrameDirection;
  readonly frameBytesMax: number;
  /** Cap on bytes kept while frames are held back; beyond it the sender floods. */
  readonly heldBytesMax?: number;
}

const HELD_BYTES_MIN = 4 * 1024;
/** A buffer larger than this is given back as soon as it is empty. */
const HELD_BYTES_KEPT = 256 * 1024;

/** Bytes that could not be handed on yet: `bytes[start, end)`. */
interface Held {
  bytes: Uint8Array;
  view: DataView;
  start: number;
  end: number;
  /** Bytes from `start` on that the next step needs: a header, then its whole frame. */
  want: number;
}

export function createFrameReader(options: FrameReaderOptions): FrameReader {
  const { direction, frameBytesMax } = options;
  const heldBytesMax = options.heldBytesMax ?? 2 * frameBytesMax;
  const frame = emptyFrame();
  const held = emptyHeld();
  let fault: Refusal | null = null;
  let holding = false;
  let inSink = false;

  /** Hands on every whole frame of `bytes[from, to)`; answers where it stopped. */
  function scan(bytes: Uint8Array, view: DataView, from: number, to: number, sink: FrameSink) {
    while (to - from >= HEADER_BYTES && !holding) {
      readHeader(bytes, view, from, frame);
      fault = checkHeader(frame, direction, frameBytesMax);
      if (fault !== null || to < frame.end) break;
      from = frame.end;
      handOn(sink);
    }
    return from;
  }

  function handOn(sink: FrameSink): void {
    inSink = true;
    // A sink that throws leaves its frame half done: the stream ends there.
    fault = refusal(FrameStatus.internal, "the receiver failed on this frame", true);
    try {
      holding = !sink(frame);
      fault = null;
    } finally {
      inSink = false;
    }
  }

  function scanHeld(sink: FrameSink): void {
    held.start = scan(held.bytes, held.view, held.start, held.end, sink);
    const kept = held.end - held.start;
    held.want = kept >= HEADER_BYTES && !holding ? frame.length : HEADER_BYTES;
    if (kept === 0) empty(held);
  }

  /** Completes the frame that earlier chunks began; answers how much of the chunk it took. */
  function finishHeld(chunk: Uint8Array, sink: FrameSink): number {
    let from = 0;
    while (held.end > held.start && fault === null && !holding) {
      const missing = held.want - (held.end - held.start);
      const taken = Math.min(missing, chunk.length - from);
      append(held, chunk, from, from + taken);
      from += taken;
      if (taken < missing) break;
      scanHeld(sink);
    }
    return from;
  }

  function push(chunk: Uint8Array, sink: FrameSink): Refusal | null {
    assert(!inSink, "a frame sink does not feed its own reader");
    if (fault !== null) return fault;
    let from = holding ? 0 : finishHeld(chunk, sink);
    if (fault === null && !holding && from < chunk.length) {
      const view = new DataView(chunk.buffer, chunk.byteOffset, chunk.byteLength);
      from = scan(chunk, view, from, chunk.length, sink);
      held.want = chunk.length - from >= HEADER_BYTES && !holding ? frame.length : HEADER_BYTES;
    }
    if (fault === null && from < chunk.length) keep(chunk, from);
    return ended();
  }

  function keep(chunk: Uint8Array, from: number): void {
    const bytes = held.end - held.start + chunk.length - from;
    if (holding && bytes > heldBytesMax) {
      const text = `${bytes} bytes of requests wait: read replies before sending more`;
      fault = refusal(FrameStatus.limit, text, true);
      return;
    }
    append(held, chunk, from, chunk.length);
  }

  function resume(sink: FrameSink): Refusal | null {
    assert(!inSink, "a frame sink does not resume its own reader");
    if (fault !== null || !holding) return fault;
    holding = false;
    scanHeld(sink);
    return ended();
  }

  function ended(): Refusal | null {
    if (fault !== null) empty(held);
    return fault;
  }

  return {
    push,
    hold() {
      assert(!inSink, "a frame sink holds frames back by its answer");
      holding = true;
    },
    resume,
    get heldBytes() {
      return held.end - held.start;
    },
    get holding() {
      return holding;
    },
  };
}

function emptyHeld(): Held {
  const bytes = new Uint8Array(0);
  return { bytes, view: new DataView(bytes.buffer), start: 0, end: 0, want: HEADER_BYTES };
}

function empty(held: Held): void {
  held.start = 0;
  held.end = 0;
  held.want = HEADER_BYTES;
  if (held.bytes.length > HELD_BYTES_KEPT) replace(held, new Uint8Array(0));
}

function replace(held: Held, bytes: Uint8Array<ArrayBuffer>): void {
  held.bytes = bytes;
  held.view = new DataView(bytes.buffer);
}

/** Adds `chunk[from, to)`. The buffer grows as bytes arrive: a promise of length costs nothing. */
function append(held: Held, chunk: Uint8Array, from: number, to: number): void {
  if (held.end + to - from > held.bytes.length) makeRoom(held, to - from);
  held.bytes.set(from === 0 && to === chunk.length ? chunk : chunk.subarray(from, to), held.end);
  held.end += to - from;
}

/** Moving is worth it only when half the buffer is free, else it would be moved over and over. */
function makeRoom(held: Held, bytes: number): void {
  const old = held.bytes;
  const needed = held.end - held.start + bytes;
  if (2 * needed > old.length) replace(held, new Uint8Array(Math.max(HELD_BYTES_MIN, 2 * needed)));
  held.bytes.set(old.subarray(held.start, held.end), 0);
  held.end -= held.start;
  held.start = 0;
}
