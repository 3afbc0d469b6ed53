import { assert, loopTurns, type NamespaceIndex, type TurnSource } from "../core/index.ts";
import {
  blockChainOf,
  type Hashing,
  macKeyIdOf,
  manifestProblem,
  type NamespaceManifest,
  namespaceKey,
} from "../identity/index.ts";
import type { Native } from "../native/index.ts";
import type { BlockStore, EngineSession, HandleBatch, Namespaces } from "../store/index.ts";
import type { ConnectionShare } from "./engine-shares.ts";
import type { FrameCounts, LookupOutcome } from "./frame-counts.ts";
import type { GpuConnection, GpuPlane } from "./gpu-copies.ts";
import type { GpuWarming, GpuWarmingEngine } from "./gpu-warming.ts";
import * as protocol from "./protocol/index.ts";
import type { CommandPort, EngineLimits } from "./server-options.ts";

/**
 * The part of Bun's socket that a connection uses. `write` accepts as many bytes as fit and returns
 * their number.
 */
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
  /** Bits of `Feature` that both client and agent support. */
  readonly features: number;
  readonly namespaces: ConnectionNamespaces;
  readonly blockTokens: number;
  readonly holder: EngineSession;
  readonly gpu: GpuConnection;
  readonly warm: GpuWarmingEngine;
}

/**
 * A request that is too long for one turn of the event loop. The connection runs its pieces in
 * order, before any later frame. Its return value is the same as a handler's: null, or why the
 * frame is refused.
 */
export type FrameWork = Iterator<void, protocol.Refusal | null>;

/**
 * Handles a frame: writes the reply to the connection's output, or returns why the frame is
 * refused.
 */
export type FrameHandler = (
  connection: Connection,
  frame: protocol.Frame,
) => protocol.Refusal | null | FrameWork;

/** Handles one operation after HELLO. */
export type Handler = (
  connection: Connection,
  frame: protocol.Frame,
  holder: EngineSession,
) => protocol.Refusal | null | FrameWork;

/** Handlers by operation number. */
export type Handlers = Partial<Record<number, Handler>>;

/**
 * Runs the first piece of the work. Returns its result if there are no more pieces, otherwise the
 * remaining work.
 */
export function begun(work: FrameWork): protocol.Refusal | null | FrameWork {
  const first = work.next();
  return first.done === true ? first.value : work;
}

export function isWork(answered: protocol.Refusal | null | FrameWork): answered is FrameWork {
  return answered !== null && "next" in answered;
}

export interface ConnectionOptions {
  readonly limits: EngineLimits;
  readonly handle: FrameHandler;
  nowMs(): number;
  readonly uid?: number;
  readonly source?: TurnSource;
  readonly share?: ConnectionShare;
  /**
   * Called for a failure that occurs outside of any call by the connection's owner, for example in
   * a later turn of the event loop.
   */
  onFault(connection: Connection, error: unknown): void;
}

/**
 * Server side of an engine's connection. Splits the received bytes into frames, handles them in
 * order, and stops reading requests while the client leaves replies unread.
 *
 * States: waiting for HELLO → greeted → closed. The reply to a fatally refused frame is the last
 * one; then the connection closes.
 */
export class Connection {
  readonly id: number;
  /** User id of the engine's process. */
  readonly uid: number;
  /** Limits of the engine that the connection belongs to. Null: no limits. */
  readonly share: ConnectionShare | null;
  readonly output: protocol.Output = protocol.createOutput();
  greeted: Greeted | null = null;
  /** Time of the last received frame, in monotonic ms. */
  lastFrameMs: number;
  /**
   * Monotonic ms at which the unread replies exceeded their limit. Null while they are below it.
   */
  stalledSinceMs: number | null = null;
  /** Requests whose replies are still to be written. */
  working = 0;
  /** Number of LOOKUP requests that wait for blocks to arrive. */
  lookups = 0;
  /** Blocks named by the waiting LOOKUP requests, counted once per rank. */
  lookupNames = 0;
  readonly #wire: Wire;
  readonly #reader: protocol.FrameReader;
  readonly #options: ConnectionOptions;
  #closed = false;
  /** Source of event-loop turns. All connections of one process share it. */
  readonly source: TurnSource;
  /** A request whose work has remaining pieces. Later frames of this connection wait for it. */
  #work: { readonly head: protocol.FrameHead; readonly pieces: FrameWork } | null = null;
  #waitsForTurn = false;

  constructor(id: number, wire: Wire, options: ConnectionOptions) {
    this.id = id;
    this.uid = options.uid ?? 0;
    this.share = options.share ?? null;
    this.#wire = wire;
    this.#options = options;
    this.source = options.source ?? loopTurns.source();
    this.lastFrameMs = options.nowMs();
    const { frameBytesMax } = options.limits;
    this.#reader = protocol.createFrameReader({ direction: "requests", frameBytesMax });
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** Processes bytes received from the client. */
  receive(chunk: Uint8Array): void {
    if (this.#closed) return;
    if (!this.source.begin() && !this.#reader.holding) {
      this.#reader.hold();
      this.#yieldTurn();
    }
    this.#endWith(this.#reader.push(chunk, this.#sink));
    this.flush();
  }

  /**
   * Continues as far as possible. Called when the socket accepts output again, or when there is
   * more to write.
   */
  drained(): void {
    this.flush();
    if (this.#closed || protocol.pendingBytes(this.output) > 0) return;
    this.stalledSinceMs = null;
    if (!this.#reader.holding || this.#waitsForTurn) return;
    if (this.source.begin()) this.#goOn();
    else this.#yieldTurn();
  }

  /** Handles the waiting frames and pieces. Called within a time slice that has begun. */
  #goOn(): void {
    if (this.#work !== null && !this.#runWork(this.#work)) return;
    if (this.#closed) return;
    this.#wire.resume();
    this.#endWith(this.#reader.resume(this.#sink));
    this.flush();
  }

  readonly #sink = (frame: protocol.Frame): boolean => {
    this.lastFrameMs = this.#options.nowMs();
    const answered = this.#options.handle(this, frame);
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

  /** Returns true if the client has read enough replies for more to be written. */
  #mayAnswer(): boolean {
    if (protocol.pendingBytes(this.output) <= this.#options.limits.unreadBytesMax) return true;
    // Bytes that the socket accepts immediately do not count as unread by the client.
    this.flush();
    if (protocol.pendingBytes(this.output) <= this.#options.limits.unreadBytesMax) return true;
    this.stalledSinceMs ??= this.#options.nowMs();
    return false;
  }

  /**
   * Runs pieces of a request until the time slice ends. Returns false if pieces remain or the
   * connection is closed.
   */
  #runWork(work: { readonly head: protocol.FrameHead; readonly pieces: FrameWork }): boolean {
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

  #refuse(head: protocol.FrameHead, refused: protocol.Refusal | null): void {
    if (refused === null) return;
    protocol.encodeRefusal(this.output, head, refused);
    if (refused.fatal) this.hangUp();
  }

  /** Ends this connection's turn, so that other connections run before its next request. */
  #yieldTurn(): void {
    this.#waitsForTurn = true;
    this.#wire.pause();
    this.source
      .turn()
      .then(() => {
        this.#waitsForTurn = false;
        // If more replies may not be written now, `drained` continues once the client has read
        // some.
        if (!this.#closed && this.#mayAnswer()) this.#goOn();
      })
      .catch((error) => this.#options.onFault(this, error));
  }

  #endWith(fault: protocol.Refusal | null): void {
    if (fault === null || this.#closed) return;
    protocol.encodeErrorReply(this.output, 0, 0, fault.status, fault.text);
    this.hangUp();
  }

  /** Writes as much of the pending output as the socket accepts. */
  flush(): void {
    if (this.#closed) return;
    while (protocol.pendingBytes(this.output) > 0) {
      const written = this.#wire.write(protocol.pendingOutput(this.output));
      if (written < 0) {
        this.close();
        return;
      }
      if (written === 0) return;
      protocol.consumeOutput(this.output, written);
    }
  }

  /**
   * Returns the pending output, for a caller that writes it together with a file descriptor and
   * then calls `sent`.
   */
  takePending(): Uint8Array {
    return protocol.pendingOutput(this.output);
  }

  sent(bytes: number): void {
    protocol.consumeOutput(this.output, bytes);
  }

  /** Sends the reason in a frame that replies to no request, then closes the connection. */
  dismiss(status: Exclude<protocol.FrameStatus, 0>, text: string): void {
    this.notify(status, text);
    this.hangUp();
  }

  /** Sends a message in a frame that replies to no request. */
  notify(status: Exclude<protocol.FrameStatus, 0>, text: string): void {
    if (this.#closed) return;
    protocol.encodeErrorReply(this.output, 0, 0, status, text);
    this.flush();
  }

  /** Closes the connection once the pending output is written. */
  hangUp(): void {
    this.flush();
    if (this.#closed) return;
    this.#closed = true;
    this.#wire.end();
  }

  /**
   * Closes the connection without a message, because the socket has failed or the client is gone.
   */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#wire.terminate();
  }

  /** Marks the connection as closed. Called when the socket has ended. */
  ended(): void {
    this.#closed = true;
  }
}

/** Maximum ranks of a model that one request can refer to. */
const RANKS_MAX = 256;

export interface NamespaceRef {
  readonly index: NamespaceIndex;
  /** Key of the namespace, 32 bytes. */
  readonly key: Uint8Array;
}

interface Opened extends NamespaceRef {
  readonly manifest: NamespaceManifest;
  /** The namespaces of all ranks of the model, this rank's own first. Null until first used. */
  family: readonly NamespaceRef[] | null;
}

/**
 * The namespaces that requests of one connection can refer to by handle: its manifest's own (handle
 * 0), those of the model's other ranks, and those with an adapter or a salt.
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

  /** Returns the namespace of a handle. Null if the handle is unknown. */
  of(handle: number): NamespaceRef | null {
    return this.#opened[handle] ?? null;
  }

  /**
   * Returns the handle of the manifest's namespace with this adapter and salt, or why it cannot be
   * opened.
   */
  open({ loraDigest, salt }: protocol.NamespaceRequest): number | string {
    const own = this.#opened[0].manifest;
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
    if (this.#opened.length > protocol.NAMESPACES_MAX) {
      return `at most ${protocol.NAMESPACES_MAX} namespaces per connection: open another connection`;
    }
    const index = this.#namespaces.indexOf(key);
    if (index === null) return "namespace limit of this agent reached: restart it";
    this.#describe(index, manifest);
    this.#opened.push({ index, key, manifest, family: null });
    this.#handles.set(name, this.#opened.length - 1);
    return this.#opened.length - 1;
  }

  /**
   * Registers the parameters that peers need to know about the namespace. Routers do not list such
   * a namespace.
   */
  #describe(index: NamespaceIndex, manifest: NamespaceManifest): void {
    const macKeyId = macKeyIdOf(manifest);
    if (macKeyId !== null) this.#namespaces.setMacKeyId(index, macKeyId);
    if (this.#namespaces.factsOf(index) !== null) return;
    const { model, blockTokens } = manifest;
    this.#namespaces.describe(index, { model, blockTokens, chain: blockChainOf(manifest) }, false);
  }

  /**
   * Returns the namespaces of all ranks of the model, the connection's own first, or the reason why
   * there are none.
   */
  familyOf(handle: number): readonly NamespaceRef[] | string {
    const opened = this.#opened[handle];
    if (opened.family !== null) return opened.family;
    const { tpSize, ppSize, tpRank, ppRank } = opened.manifest;
    const ranks = tpSize * ppSize;
    if (ranks > RANKS_MAX) {
      return `a family of ${ranks} ranks: at most ${RANKS_MAX} can be looked up at once`;
    }
    const family: NamespaceRef[] = [{ index: opened.index, key: opened.key }];
    for (let rank = 0; rank < ranks; rank++) {
      const [tp, pp] = [rank % tpSize, Math.floor(rank / tpSize)];
      if (tp === tpRank && pp === ppRank) continue;
      const manifest = { ...opened.manifest, tpRank: tp, ppRank: pp };
      const key = namespaceKey(this.#hashing, manifest);
      const index = this.#namespaces.indexOf(key);
      if (index === null) return "namespace limit of this agent reached: restart it";
      this.#describe(index, manifest);
      family.push({ index, key });
    }
    opened.family = family;
    return family;
  }
}

export function greetedOf(connection: Connection): Greeted {
  assert(connection.greeted !== null, "a handler runs after HELLO");
  return connection.greeted;
}

export function answerOutcomes(
  connection: Connection,
  frame: protocol.FrameHead,
  handles: HandleBatch,
): void {
  if (!protocol.wantsReply(frame)) return;
  protocol.encodeOutcomesReply(
    connection.output,
    frame.op as protocol.OutcomeOp,
    frame.requestId,
    handles,
  );
}

export function answerOne(
  connection: Connection,
  frame: protocol.FrameHead,
  handles: HandleBatch,
  outcome: number,
): void {
  handles.count = 1;
  handles.outcome[0] = outcome;
  answerOutcomes(connection, frame, handles);
}

/** Computes digests of prompts and of engines' own chain keys. The native library implements it. */
export interface DigestMaker {
  prefixDigests(key: Uint8Array, tokens: Uint32Array, blockTokens: number, out: Uint8Array): number;
  chainDigests(key: Uint8Array, items: Uint8Array, itemBytes: number, out: Uint8Array): number;
}

/** The parts of the agent that the frame handlers use. */
export interface EngineContext {
  readonly store: BlockStore;
  readonly namespaces: Namespaces;
  readonly hashing: Hashing;
  readonly digests: DigestMaker;
  readonly native: Pick<Native, "closeFd">;
  readonly limits: EngineLimits;
  readonly incarnation: bigint;
  readonly frames: FrameCounts;
  readonly gpu: GpuPlane;
  readonly warm: GpuWarming;
  /** Executes commands from engines. Null or absent: this agent accepts none. */
  readonly commands?: CommandPort | null;
  nowMs(): number;
  /** Returns true while the agent drains, that is, grants no new slots. */
  draining(): boolean;
  /**
   * Sends the connection's pending output together with a file descriptor. Returns the number of
   * bytes sent, or null if the socket has ended.
   */
  sendFd(connection: Connection, fd: number): number | null;
  /**
   * Called when the blocks of a request have been looked up. `tier` is the slowest tier that
   * supplied a block.
   */
  lookedUp(tier: "ram" | "ssd" | "peer", outcome: LookupOutcome, seconds: number): void;
  /** Called for an unexpected failure of a request whose reply is written in a later turn. */
  onFault(connection: Connection, error: unknown): void;
  log(level: "info" | "warn" | "error", text: string, fields?: Record<string, unknown>): void;
}

/**
 * Calls `answered` to write the reply once `work` has ended. The connection's other requests
 * continue meanwhile.
 */
export function answerLater(
  context: EngineContext,
  connection: Connection,
  answered: Promise<void>,
): void {
  connection.working++;
  const finish = () => {
    connection.working--;
    connection.drained();
  };
  answered.finally(finish).catch((error) => context.onFault(connection, error));
}
