import { assert, loopTurns, type NamespaceIndex, type TurnSource } from "../core/index.ts";
import {
  blockChainOf,
  type Hashing,
  macKeyIdOf,
  manifestProblem,
  type NamespaceManifest,
  namespaceKey,
} from "../identity/index.ts";
import type { HandleBatch, Holder, Namespaces } from "../store/index.ts";
import type { ConnectionShare } from "./engine-shares.ts";
import type { GpuLine } from "./gpu-copies.ts";
import type { WarmEngine } from "./gpu-warming.ts";
import {
  consumeOutput,
  createFrameReader,
  createOutput,
  encodeErrorReply,
  encodeOutcomesReply,
  encodeRefusal,
  type Frame,
  type FrameHead,
  type FrameReader,
  type FrameStatus,
  NAMESPACES_MAX,
  type NamespaceRequest,
  type OutcomeOp,
  type Output,
  pendingBytes,
  pendingOutput,
  type Refusal,
  wantsReply,
} from "./protocol/index.ts";
import type { EngineLimits } from "./server-options.ts";

/** What of Bun's socket a connection uses. `write` takes what fits and says how much that was. */
export interface Wire {
  write(bytes: Uint8Array): number;
  pause(): void;
  resume(): void;
  end(): void;
  terminate(): void;
}

export interface Greeted {
  readonly name: string;
  readonly namespace: NamespaceIndex;
  readonly namespaceKey: Uint8Array;
  /** Bits of `Feature` that both sides have. */
  readonly features: number;
  readonly namespaces: ConnectionNamespaces;
  readonly blockTokens: number;
  readonly holder: Holder;
  readonly gpu: GpuLine;
  readonly warm: WarmEngine;
}

/**
 * A request that is too long for one turn: its pieces run in order, and no later frame of the
 * connection before the last one. Returns what a handler returns.
 */
export type FrameWork = Iterator<void, Refusal | null>;

/** Answers a frame into the connection's output, or says why it is refused. */
export type FrameHandler = (connection: Connection, frame: Frame) => Refusal | null | FrameWork;

/** Runs the first piece: the answer if it was the only one, else the work that is left. */
export function begun(work: FrameWork): Refusal | null | FrameWork {
  const first = work.next();
  return first.done === true ? first.value : work;
}

export function isWork(answered: Refusal | null | FrameWork): answered is FrameWork {
  return answered !== null && "next" in answered;
}

/**
 * One engine's line: cuts its bytes into frames, answers them in order, and holds its requests back
 * while it does not read.
 *
 * States: waiting for the hello → greeted → closed. A fatal refusal is answered, then the line
 * closes.
 */
export class Connection {
  readonly id: number;
  /** User of the process behind it. */
  readonly uid: number;
  /** What its engine may take; null: there is no limit. */
  readonly share: ConnectionShare | null;
  readonly output: Output = createOutput();
  greeted: Greeted | null = null;
  /** Monotonic milliseconds of the last frame. */
  lastFrameMs: number;
  /** Since when answers wait unread beyond the cap; null while they do not. */
  stalledSinceMs: number | null = null;
  /** Requests whose answer is still being worked on. */
  working = 0;
  /** Of these, lookups that wait for blocks. */
  lookups = 0;
  /** Blocks that these lookups name, counted for each rank. */
  lookupNames = 0;
  readonly #wire: Wire;
  readonly #reader: FrameReader;
  readonly #limits: EngineLimits;
  readonly #handle: FrameHandler;
  readonly #nowMs: () => number;
  readonly #onFault: (connection: Connection, error: unknown) => void;
  #closed = false;
  /** Shared by the connections of one process. */
  readonly source: TurnSource;
  /** A request of which some pieces are left; frames behind it are held back. */
  #work: { readonly head: FrameHead; readonly pieces: FrameWork } | null = null;
  #waitsForTurn = false;

  constructor(
    id: number,
    wire: Wire,
    options: {
      limits: EngineLimits;
      handle: FrameHandler;
      nowMs: () => number;
      readonly uid?: number;
      readonly source?: TurnSource;
      readonly share?: ConnectionShare;
      /** Told of a failure that no caller of this connection is there to see. */
      onFault: (connection: Connection, error: unknown) => void;
    },
  ) {
    this.id = id;
    this.uid = options.uid ?? 0;
    this.share = options.share ?? null;
    this.#wire = wire;
    this.#limits = options.limits;
    this.#handle = options.handle;
    this.#nowMs = options.nowMs;
    this.#onFault = options.onFault;
    this.source = options.source ?? loopTurns.source();
    this.lastFrameMs = options.nowMs();
    const { frameBytesMax } = options.limits;
    this.#reader = createFrameReader({ direction: "requests", frameBytesMax });
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** Takes what the socket brought. */
  receive(chunk: Uint8Array): void {
    if (this.#closed) return;
    if (!this.source.begin() && !this.#reader.holding) {
      this.#reader.hold();
      this.#yieldTurn();
    }
    this.#endWith(this.#reader.push(chunk, this.#sink));
    this.flush();
  }

  /** The socket can take more again, or there is more to write: goes on as far as that goes. */
  drained(): void {
    this.flush();
    if (this.#closed || pendingBytes(this.output) > 0) return;
    this.stalledSinceMs = null;
    if (!this.#reader.holding || this.#waitsForTurn) return;
    if (this.source.begin()) this.#goOn();
    else this.#yieldTurn();
  }

  /** Takes up what was held back, in a slice that has begun. */
  #goOn(): void {
    if (this.#work !== null && !this.#runWork(this.#work)) return;
    if (this.#closed) return;
    this.#wire.resume();
    this.#endWith(this.#reader.resume(this.#sink));
    this.flush();
  }

  readonly #sink = (frame: Frame): boolean => {
    this.lastFrameMs = this.#nowMs();
    const answered = this.#handle(this, frame);
    if (isWork(answered)) {
      const { op, flags, requestId } = frame;
      if (!this.#runWork({ head: { op, flags, requestId }, pieces: answered })) return false;
    } else this.#refuse(frame, answered);
    if (this.#closed) return false;
    if (!this.source.goOn()) {
      this.#yieldTurn();
      return false;
    }
    if (this.#mayAnswer()) return true;
    this.#wire.pause();
    return false;
  };

  /** Whether the client reads its answers, as far as it must before more are made. */
  #mayAnswer(): boolean {
    if (pendingBytes(this.output) <= this.#limits.unreadBytesMax) return true;
    // What the socket takes at once does not count as unread.
    this.flush();
    if (pendingBytes(this.output) <= this.#limits.unreadBytesMax) return true;
    this.stalledSinceMs ??= this.#nowMs();
    return false;
  }

  /** Runs pieces while the turn lasts. False: some are left, or the connection is closed. */
  #runWork(work: { readonly head: FrameHead; readonly pieces: FrameWork }): boolean {
    this.#work = work;
    for (;;) {
      const { done, value } = work.pieces.next();
      if (done === true) {
        this.#work = null;
        this.#refuse(work.head, value);
        return !this.#closed;
      }
      if (this.source.goOn()) continue;
      this.#yieldTurn();
      return false;
    }
  }

  #refuse(head: FrameHead, refused: Refusal | null): void {
    if (refused === null) return;
    encodeRefusal(this.output, head, refused);
    if (refused.fatal) this.hangUp();
  }

  /** Others have their turn before this one's requests go on. */
  #yieldTurn(): void {
    this.#waitsForTurn = true;
    this.#wire.pause();
    this.source
      .turn()
      .then(() => {
        this.#waitsForTurn = false;
        // Else the socket says when the client has read.
        if (!this.#closed && this.#mayAnswer()) this.#goOn();
      })
      .catch((error) => this.#onFault(this, error));
  }

  #endWith(fault: Refusal | null): void {
    if (fault === null || this.#closed) return;
    encodeErrorReply(this.output, 0, 0, fault.status, fault.text);
    this.hangUp();
  }

  /** Writes what waits, as far as the socket takes it. */
  flush(): void {
    if (this.#closed) return;
    while (pendingBytes(this.output) > 0) {
      const written = this.#wire.write(pendingOutput(this.output));
      if (written < 0) {
        this.close();
        return;
      }
      if (written === 0) return;
      consumeOutput(this.output, written);
    }
  }

  /**
   * What waits to be written, for the one who writes it with a descriptor; `sent` says how much
   * went.
   */
  takePending(): Uint8Array {
    return pendingOutput(this.output);
  }

  sent(bytes: number): void {
    consumeOutput(this.output, bytes);
  }

  /** Says why in a frame about the connection itself, then closes. */
  dismiss(status: Exclude<FrameStatus, 0>, text: string): void {
    this.tell(status, text);
    this.hangUp();
  }

  /** Says something in a frame about the connection itself. */
  tell(status: Exclude<FrameStatus, 0>, text: string): void {
    if (this.#closed) return;
    encodeErrorReply(this.output, 0, 0, status, text);
    this.flush();
  }

  /** Closes behind what is written. */
  hangUp(): void {
    this.flush();
    if (this.#closed) return;
    this.#closed = true;
    this.#wire.end();
  }

  /** Ends the line without a word: the socket is gone, or its reader is. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#wire.terminate();
  }

  /** The socket reported its end. */
  ended(): void {
    this.#closed = true;
  }
}

/** Ranks of one model that a request may ask for at once. */
const RANKS_MAX = 256;

export interface NamespaceRef {
  readonly index: NamespaceIndex;
  /** 32 bytes. */
  readonly key: Uint8Array;
}

interface Opened extends NamespaceRef {
  readonly manifest: NamespaceManifest;
  /** Of all ranks, its own first; null until it was asked for. */
  family: readonly NamespaceRef[] | null;
}

/**
 * The namespaces of one connection: its manifest's, those of the other ranks, and those of requests
 * with an adapter or a salt. Handle 0 is the connection's own.
 */
export class ConnectionNamespaces {
  readonly #hashing: Hashing;
  readonly #namespaces: Namespaces;
  readonly #opened: Opened[];
  readonly #handles = new Map<string, number>();

  constructor(
    parts: { readonly hashing: Hashing; readonly namespaces: Namespaces },
    manifest: NamespaceManifest,
    own: NamespaceRef,
  ) {
    this.#hashing = parts.hashing;
    this.#namespaces = parts.namespaces;
    this.#opened = [{ ...own, manifest, family: null }];
    this.#handles.set(own.key.toHex(), 0);
  }

  /** Null: no namespace was given this handle. */
  of(handle: number): NamespaceRef | null {
    return this.#opened[handle] ?? null;
  }

  /** The handle of the namespace with these in the manifest's place; or why there is none. */
  open({ loraDigest, salt }: NamespaceRequest): number | string {
    const own = this.#opened[0]!.manifest;
    const manifest: NamespaceManifest = {
      ...own,
      loraDigest: loraDigest ?? own.loraDigest,
      tenantSalt: salt ?? own.tenantSalt,
    };
    const problem = manifestProblem(manifest);
    if (problem !== null) return problem;
    const key = namespaceKey(this.#hashing, manifest);
    const name = key.toHex();
    const known = this.#handles.get(name);
    if (known !== undefined) return known;
    if (this.#opened.length > NAMESPACES_MAX) {
      return `at most ${NAMESPACES_MAX} namespaces a connection: open another connection`;
    }
    const index = this.#namespaces.indexOf(key);
    if (index === null) return "this agent serves no more namespaces: restart it";
    this.#describe(index, manifest);
    this.#opened.push({ index, key, manifest, family: null });
    this.#handles.set(name, this.#opened.length - 1);
    return this.#opened.length - 1;
  }

  /** What pulls and landings need to know of it; routers do not list it. */
  #describe(index: NamespaceIndex, manifest: NamespaceManifest): void {
    const macKeyId = macKeyIdOf(manifest);
    if (macKeyId !== null) this.#namespaces.setMacKeyId(index, macKeyId);
    if (this.#namespaces.factsOf(index) !== null) return;
    const { model, blockTokens } = manifest;
    this.#namespaces.describe(index, { model, blockTokens, chain: blockChainOf(manifest) }, false);
  }

  /** The namespaces of all ranks, the connection's own first; or why there are none. */
  familyOf(handle: number): readonly NamespaceRef[] | string {
    const opened = this.#opened[handle]!;
    if (opened.family !== null) return opened.family;
    const { tpSize, ppSize, tpRank, ppRank } = opened.manifest;
    const ranks = tpSize * ppSize;
    if (ranks > RANKS_MAX) {
      return `a family of ${ranks} ranks: at most ${RANKS_MAX} are looked up at once`;
    }
    const family: NamespaceRef[] = [{ index: opened.index, key: opened.key }];
    for (let rank = 0; rank < ranks; rank++) {
      const [tp, pp] = [rank % tpSize, Math.floor(rank / tpSize)];
      if (tp === tpRank && pp === ppRank) continue;
      const manifest = { ...opened.manifest, tpRank: tp, ppRank: pp };
      const key = namespaceKey(this.#hashing, manifest);
      const index = this.#namespaces.indexOf(key);
      if (index === null) return "this agent serves no more namespaces: restart it";
      this.#describe(index, manifest);
      family.push({ index, key });
    }
    opened.family = family;
    return family;
  }
}

export function greetedOf(connection: Connection): Greeted {
  assert(connection.greeted !== null, "a handler runs after the hello");
  return connection.greeted;
}

export function answerOutcomes(
  connection: Connection,
  frame: FrameHead,
  handles: HandleBatch,
): void {
  if (!wantsReply(frame)) return;
  encodeOutcomesReply(connection.output, frame.op as OutcomeOp, frame.requestId, handles);
}

export function answerOne(
  connection: Connection,
  frame: FrameHead,
  handles: HandleBatch,
  outcome: number,
): void {
  handles.count = 1;
  handles.outcome[0] = outcome;
  answerOutcomes(connection, frame, handles);
}
