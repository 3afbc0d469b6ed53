import type { Connection } from "../../../src/engine/index.ts";
import {
  type AcquireOptions,
  acquireReply,
  commitRequest,
  consumeOutput,
  createFrameReader,
  createOutput,
  decodeErrorReply,
  decodeOutcomesReply,
  decodeReserveReply,
  encodeAcquireRequest,
  encodeHandlesRequest,
  encodeReserveRequest,
  type Frame,
  FrameStatus,
  Op,
  Outcome,
  type Output,
  pendingOutput,
} from "../../../src/engine/protocol/index.ts";
import type { Region } from "../../../src/native/index.ts";
import { createAddressBatch, createHandleBatch } from "../../../src/store/index.ts";
import { must, type Saw } from "../target.ts";
import { ARENA_BYTES, LIMITS } from "./stage.ts";

/** A slot an engine was handed: it writes or reads there, and nobody else may write there. */
export interface Span {
  readonly slot: number;
  readonly generation: number;
  readonly offset: number;
  readonly bytes: number;
  readonly seed: bigint;
  readonly writing: boolean;
  /** Its bytes are no longer those of the block, by the engine's own doing. */
  spoilt: boolean;
}

/** Told of each slot handed out, before its bytes are touched. */
export type OnSpan = (span: Span) => void;

type OnReply = (frame: Frame) => void;
type Encode = (output: Output, id: number) => void;

const CAPACITY = LIMITS.itemsMax;

/** Filled and read before anybody else's turn. */
const scratch = {
  blocks: createAddressBatch(CAPACITY),
  handles: createHandleBatch(CAPACITY),
  output: createOutput(),
};

/** The engine at the other end of a connection: what it asked, what it holds, what it believes. */
export class EngineDouble {
  readonly blocks = scratch.blocks;
  readonly handles = scratch.handles;
  readonly spans: Span[] = [];
  /** Bytes of answers the socket takes before it is full. */
  room = Number.POSITIVE_INFINITY;
  connection!: Connection;
  /** The socket is gone. */
  over = false;
  /** The process is dead as well. */
  dead = false;
  /** A frame of its was damaged: what it holds is not known, and what is answered neither. */
  unsure = false;
  namespace = 0;
  readonly #region: Region;
  readonly #saw: Saw;
  readonly #onSpan: OnSpan;
  readonly #waiting = new Map<number, OnReply>();
  /** Requests that may have been handed slots which are not known here yet. */
  readonly #owed = new Set<number>();
  readonly #reader = createFrameReader({ direction: "replies", frameBytesMax: 64 * 1024 });
  #nextId = 1;

  constructor(region: Region, saw: Saw, onSpan: OnSpan) {
    this.#region = region;
    this.#saw = saw;
    this.#onSpan = onSpan;
  }

  get isOwed(): boolean {
    return this.#owed.size > 0;
  }

  get live(): boolean {
    return !this.over;
  }

  /** From here on nothing is believed of it. */
  doubt(): void {
    this.unsure = true;
    this.spans.length = 0;
  }

  readonly wire = {
    write: (bytes: Uint8Array): number => {
      const taken = Math.min(bytes.length, this.room);
      this.room -= taken;
      this.take(bytes.subarray(0, taken));
      return taken;
    },
    pause: () => undefined,
    resume: () => undefined,
    end: () => undefined,
    terminate: () => undefined,
  };

  /** Answers as they come: each must be well formed and belong to a request. */
  take(bytes: Uint8Array): void {
    const fault = this.#reader.push(bytes, (frame) => {
      this.#answer(frame);
      return true;
    });
    must(fault === null, `answers are well formed: ${fault?.text}`);
  }

  #answer(frame: Frame): void {
    const waiting = this.#waiting.get(frame.requestId);
    this.#waiting.delete(frame.requestId);
    this.#saw(`${frame.op} ${frame.status}`);
    if (frame.status === FrameStatus.ok) {
      if (!this.unsure) waiting?.(frame);
      return;
    }
    this.#owed.delete(frame.requestId);
    must(decodeErrorReply(frame).ok, "a refusal is well formed");
    must(frame.status !== FrameStatus.internal, "the agent fails on no frame");
  }

  /** A request that may be handed slots. */
  #requestSlots(encode: Encode, onReply: OnReply): Uint8Array {
    this.#owed.add(this.#nextId);
    return this.request(encode, (frame) => {
      this.#owed.delete(frame.requestId);
      onReply(frame);
    });
  }

  /** A request as bytes; `onReply` gets its answer where it is taken. */
  request(encode: Encode, onReply: OnReply): Uint8Array {
    const { output } = scratch;
    const id = this.#nextId++;
    encode(output, id);
    this.#waiting.set(id, onReply);
    const bytes = pendingOutput(output).slice();
    consumeOutput(output, bytes.length);
    return bytes;
  }

  reserve(session: bigint, seedOf: (index: number) => bigint): Uint8Array {
    const { count } = this.blocks;
    const bytes = this.blocks.bytes.slice(0, count);
    const seeds = Array.from({ length: count }, (_, i) => seedOf(i));
    return this.#requestSlots(
      (output, id) => encodeReserveRequest(output, id, { session }, this.blocks),
      (frame) => {
        must(decodeReserveReply(frame, this.handles) === null, "a reservation is well formed");
        must(this.handles.count === count, "each block has its answer");
        for (let i = 0; i < count; i++) this.#noteReserved(i, bytes[i]!, seeds[i]!);
      },
    );
  }

  #noteReserved(i: number, bytes: number, seed: bigint): void {
    const { handles } = this;
    this.#saw(`reserve ${handles.outcome[i]}`);
    if (handles.outcome[i] !== Outcome.ok) return;
    const [slot, generation] = [handles.slot[i]!, handles.generation[i]!];
    const offset = handles.offset[i]!;
    must(offset % 4096 === 0 && handles.bytes[i]! >= bytes, "a slot has room for its block");
    must(offset + handles.bytes[i]! <= ARENA_BYTES, "a slot lies in the arena");
    this.#hold({ slot, generation, offset, bytes, seed, writing: true, spoilt: false });
    this.#region.fill(offset, bytes, seed);
  }

  acquire(options: AcquireOptions, seedOf: (index: number) => bigint): Uint8Array {
    const { count } = this.blocks;
    const seeds = Array.from({ length: count }, (_, i) => seedOf(i));
    return this.#requestSlots(
      (output, id) => encodeAcquireRequest(output, id, options, this.blocks),
      (frame) => {
        must(acquireReply.decode(frame, this.handles) === null, "an acquire is well formed");
        must(this.handles.count === count, "each block has its answer");
        for (let i = 0; i < count; i++) this.#noteAcquired(i, seeds[i]!);
      },
    );
  }

  #noteAcquired(i: number, seed: bigint): void {
    const { handles } = this;
    this.#saw(`acquire ${handles.outcome[i]}`);
    if (handles.outcome[i] !== Outcome.ok) return;
    const [slot, generation] = [handles.slot[i]!, handles.generation[i]!];
    const [offset, bytes] = [handles.offset[i]!, handles.bytes[i]!];
    must(offset + bytes <= ARENA_BYTES, "a block lies in the arena");
    const span = { slot, generation, offset, bytes, seed, writing: false, spoilt: false };
    this.#hold(span);
    this.mustBeWhole(span);
    const checksum = this.#region.checksum(offset, bytes);
    must(checksum === handles.checksum[i], "a block has its checksum");
  }

  /** What is held for reading is what was committed, for as long as it is held. */
  mustBeWhole({ offset, bytes, seed, writing }: Span): void {
    if (writing) return;
    const wrongAt = this.#region.firstWrong(offset, bytes, seed);
    must(wrongAt === null, "a block is read as it was committed, or not at all");
  }

  #hold(span: Span): void {
    this.#onSpan(span);
    this.spans.push(span);
  }

  /** Commits spans: `how` 0 gives no checksum, 1 the right one, 2 a wrong one. */
  commit(spans: readonly Span[], how: (span: Span) => 0 | 1 | 2): Uint8Array {
    const { handles } = this;
    handles.count = spans.length;
    const wanted = spans.map((span, i) => {
      const given = span.spoilt ? 2 : how(span);
      handles.slot[i] = span.slot;
      handles.generation[i] = span.generation;
      handles.flags[i] = given === 0 ? 0 : 1;
      const right = this.#region.checksum(span.offset, span.bytes);
      handles.checksum[i] = given === 2 ? right ^ 1n : right;
      const isOwn = span.writing && this.#drop(span);
      if (!isOwn) return Outcome.stale;
      return given === 2 ? Outcome.corrupt : Outcome.ok;
    });
    return this.request(
      (output, id) => commitRequest.encode(output, id, handles),
      (frame) => this.#compare(frame, wanted),
    );
  }

  /** Aborts (7) or releases (9) spans. */
  giveBack(op: 7 | 9, spans: readonly Span[]): Uint8Array {
    const { handles } = this;
    handles.count = spans.length;
    const wanted = new Array<Outcome>(spans.length);
    // Releases go from last to first: of a slot held once and named twice the last one counts.
    const order = op === Op.release ? [...spans.keys()].reverse() : spans.keys();
    for (const i of order) {
      const span = spans[i]!;
      handles.slot[i] = span.slot;
      handles.generation[i] = span.generation;
      if (this.spans.includes(span)) this.mustBeWhole(span);
      const fits = span.writing === (op === Op.abort);
      wanted[i] = fits && this.#drop(span) ? Outcome.ok : Outcome.stale;
    }
    return this.request(
      (output, id) => encodeHandlesRequest(output, op, id, handles),
      (frame) => this.#compare(frame, wanted),
    );
  }

  #compare(frame: Frame, wanted: readonly Outcome[]): void {
    const { handles } = this;
    must(decodeOutcomesReply(frame, handles) === null, "outcomes are well formed");
    must(handles.count === wanted.length, "each slot has its answer");
    for (const [i, outcome] of wanted.entries()) {
      const got = handles.outcome[i]!;
      this.#saw(`${frame.op} ${got}`);
      must(got === outcome, `op ${frame.op} answers ${got} instead of ${outcome}`);
    }
  }

  /** False where it was not held. Two holds of one slot are the same to the agent. */
  #drop({ slot, generation, writing }: Span): boolean {
    const at = this.spans.findIndex(
      (own) => own.slot === slot && own.generation === generation && own.writing === writing,
    );
    if (at >= 0) this.spans.splice(at, 1);
    return at >= 0;
  }
}
