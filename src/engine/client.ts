import { HearthError, sleep, systemClock } from "../core/index.ts";
import { type Native, type NativeBuffer, Region } from "../native/index.ts";
import type { HandleBatch } from "../store/index.ts";
import { ClientConnection } from "./client-connection.ts";
import * as protocol from "./protocol/index.ts";

export interface ClientOptions {
  readonly socketPath: string;
  /** Canonical encoding of the namespace manifest. */
  readonly manifest: Uint8Array;
  /** Name of this client in the agent's logs. */
  readonly name: string;
  readonly signal?: AbortSignal;
  /**
   * True if the manifest names a MAC key (`withMacKey`). Blocks are then transferred with their
   * MACs.
   */
  readonly hasMacs?: boolean;
}

/** Timeout in ms for HELLO's reply. */
const HELLO_MS = 5_000;

/**
 * Client of the engine plane. Requests may overlap. Each promise settles when its reply has
 * arrived; results are written to the batch that the caller passed. `arena` is a mapping of the
 * agent's memory for blocks (the arena).
 */
export class EngineClient implements AsyncDisposable {
  readonly hello: protocol.HelloReply;
  readonly arena: Region;
  /** GPU requests. Usable if `hello.features` includes `Feature.gpu`. */
  readonly gpu: ClientGpu;
  /**
   * Requests of connections that form one engine. Usable if `hello.features` includes
   * `Feature.engine`.
   */
  readonly engine: ClientEngine;
  readonly #connection: ClientConnection;

  private constructor(
    native: Native,
    connection: ClientConnection,
    hello: protocol.HelloReply,
    arena: Region,
  ) {
    this.#connection = connection;
    this.gpu = new ClientGpu(connection, native);
    this.engine = new ClientEngine(connection);
    this.hello = hello;
    this.arena = arena;
  }

  /**
   * Connects and sends HELLO. Throws ENGINE_CLOSED if no agent replies, and ENGINE_REFUSED with the
   * agent's reason.
   */
  static async connect(native: Native, options: ClientOptions): Promise<EngineClient> {
    const connection = await ClientConnection.open(options.socketPath);
    try {
      protocol.encodeHelloRequest(connection.output, 0, {
        versionMin: protocol.PROTOCOL_VERSION,
        versionMax: protocol.PROTOCOL_VERSION,
        features:
          protocol.Feature.gpu |
          protocol.Feature.engine |
          protocol.Feature.report |
          (options.hasMacs ? protocol.Feature.mac : 0),
        name: options.name,
        manifest: options.manifest,
      });
      const received = await receiveHello(native, connection, options.signal);
      const { hello, arena } = mapArena(native, connection, received);
      if (options.hasMacs && (hello.features & protocol.Feature.mac) === 0) {
        throw new HearthError("ENGINE_REFUSED", "the agent does not support MACs of blocks", {
          fix: "upgrade the agent, or use the namespace without a key",
        });
      }
      connection.start(hello.frameBytesMax);
      return new EngineClient(native, connection, hello, arena);
    } catch (error) {
      connection.close();
      throw error;
    }
  }

  /** Resolves when the connection has ended, with the reason. */
  get closed(): Promise<HearthError> {
    return this.#connection.closed;
  }

  async ping(payload: Uint8Array): Promise<void> {
    await this.#connection.request(
      (output, id) => protocol.encodePingRequest(output, id, payload),
      () => null,
    );
  }

  /** Requests the digests for tokens, chain keys or engine hashes and writes them to `into`. */
  identify(request: Readonly<protocol.IdentifyRequest>, into: protocol.DigestItems): Promise<void> {
    return this.#connection.request(
      (output, id) => protocol.encodeIdentifyRequest(output, id, request),
      (frame) => protocol.decodeIdentifyReply(frame, into),
    );
  }

  /**
   * Returns how many blocks from the first on are present on `tiers` without a gap. `best[i]`
   * receives the `TierBit` of the best tier that has block `i`.
   */
  match(blocks: Readonly<protocol.DigestItems>, tiers: number, best: Uint8Array): Promise<number> {
    return this.#connection.number(
      (output, id) => protocol.encodeMatchRequest(output, id, { tiers }, blocks),
      (frame) => protocol.decodeMatchReply(frame, best),
    );
  }

  /**
   * Reserves slots for new blocks. `namespace` is a handle from `engine.openNamespace`, or 0 for
   * the connection's own namespace.
   */
  reserve(
    blocks: Readonly<protocol.BlockItems>,
    session: bigint,
    into: HandleBatch,
    namespace = 0,
  ): Promise<void> {
    return this.#connection.request(
      (output, id) =>
        protocol.encodeReserveRequest(
          output,
          id,
          { session: session, namespace: namespace },
          blocks,
        ),
      (frame) => protocol.decodeReserveReply(frame, into),
    );
  }

  /** Publishes the reserved slots. Outcomes are written to `handles`. */
  commit(handles: HandleBatch): Promise<void> {
    const { encode } = this.#hasMacs ? protocol.commitRequestWithMacs : protocol.commitRequest;
    return this.#connection.outcomes((output, id) => encode(output, id, handles), handles);
  }

  abort(handles: protocol.HandleItems & protocol.OutcomeItems): Promise<void> {
    return this.#connection.outcomes(
      (output, id) => protocol.encodeHandlesRequest(output, protocol.Op.abort, id, handles),
      handles,
    );
  }

  acquire(
    blocks: Readonly<protocol.DigestItems>,
    options: Readonly<protocol.AcquireOptions>,
    into: HandleBatch,
  ): Promise<void> {
    const { decode } = this.#hasMacs ? protocol.acquireReplyWithMacs : protocol.acquireReply;
    return this.#connection.request(
      (output, id) => protocol.encodeAcquireRequest(output, id, options, blocks),
      (frame) => decode(frame, into),
    );
  }

  get #hasMacs(): boolean {
    return (this.hello.features & protocol.Feature.mac) !== 0;
  }

  /** Releases acquired slots. The agent sends no reply. */
  release(handles: Readonly<protocol.HandleItems>): void {
    this.#connection.send((output, id) =>
      protocol.encodeHandlesRequest(output, protocol.Op.release, id, handles, true),
    );
  }

  /**
   * Copies acquired block `i` to `into` and verifies the copy. Returns false if checksum or MAC
   * does not match; the caller then returns the block with `report`.
   */
  copyOut(handles: Readonly<HandleBatch>, i: number, into: NativeBuffer): boolean {
    const [offset, bytes] = [handles.offset[i], handles.bytes[i]];
    return this.arena.copyOut(offset, into, bytes, true) === handles.checksum[i];
  }

  /**
   * Returns acquired slots whose copies did not match their checksum or MAC. Resolves when the
   * agent has checked these blocks. It discards those that are `corrupt`, so that they can be
   * stored again. An agent without `Feature.report` only releases the slots.
   */
  async report(handles: protocol.HandleItems & protocol.OutcomeItems): Promise<void> {
    if ((this.hello.features & protocol.Feature.report) !== 0) {
      await this.#connection.outcomes(
        (output, id) => protocol.encodeHandlesRequest(output, protocol.Op.report, id, handles),
        handles,
      );
      return;
    }
    this.release(handles);
    handles.outcome.fill(protocol.Outcome.ok, 0, handles.count);
  }

  /**
   * Returns all slots: those at the positions in `damaged` with `report`, the others with
   * `release`.
   */
  async giveBack(handles: Readonly<HandleBatch>, damaged: readonly number[]): Promise<void> {
    const wrong = new Set(damaged);
    const right = [...Array(handles.count).keys()].filter((i) => !wrong.has(i));
    if (right.length > 0) this.release(chosen(handles, right));
    if (damaged.length > 0) await this.report(chosen(handles, damaged));
  }

  gpuStored(blocks: Readonly<protocol.BlockItems>, into: protocol.OutcomeItems): Promise<void> {
    return this.#connection.outcomes(
      (output, id) => protocol.encodeGpuStoredRequest(output, id, blocks),
      into,
    );
  }

  gpuEvicted(blocks: Readonly<protocol.DigestItems>, into: protocol.OutcomeItems): Promise<void> {
    return this.#connection.outcomes(
      (output, id) => protocol.encodeGpuEvictedRequest(output, id, blocks),
      into,
    );
  }

  sessionCommit(
    session: bigint,
    block: Readonly<protocol.DigestItems>,
    into: protocol.OutcomeItems,
  ): Promise<void> {
    return this.#connection.outcomes(
      (output, id) => protocol.encodeSessionCommitRequest(output, id, { session }, block),
      into,
    );
  }

  sessionRelease(session: bigint, into: protocol.OutcomeItems): Promise<void> {
    return this.#connection.outcomes(
      (output, id) =>
        protocol.sessionRequests[protocol.Op.sessionRelease].encode(output, id, { session }),
      into,
    );
  }

  sessionStatus(session: bigint): Promise<protocol.SessionStatus> {
    return this.#connection.ask(
      (output, id) =>
        protocol.sessionRequests[protocol.Op.sessionStatus].encode(output, id, { session }),
      protocol.decodeSessionStatusReply,
    );
  }

  /** Returns one page of the session list. Pass its `next` as `after` to get the following page. */
  sessionList(request: Readonly<protocol.SessionListRequest>): Promise<protocol.SessionListReply> {
    return this.#connection.ask(
      (output, id) => protocol.encodeSessionListRequest(output, id, request),
      (frame) => protocol.decodeSessionListReply(frame),
    );
  }

  alias(
    blocks: Readonly<protocol.DigestItems>,
    kind: protocol.AliasKind,
    aliases: Uint8Array,
    into: protocol.OutcomeItems,
  ): Promise<void> {
    return this.#connection.outcomes(
      (output, id) => protocol.encodeAliasRequest(output, id, { kind }, { ...blocks, aliases }),
      into,
    );
  }

  /**
   * Closes the connection, then unmaps the arena. The caller must not read from the arena
   * afterwards.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#connection.close();
    await this.#connection.closed;
    this.gpu.close();
    this.arena[Symbol.dispose]();
  }
}

/** Returns the handles at these positions. */
function chosen(handles: Readonly<protocol.HandleItems>, places: readonly number[]) {
  return {
    count: places.length,
    slot: Uint32Array.from(places, (i) => handles.slot[i]),
    generation: Uint32Array.from(places, (i) => handles.generation[i]),
    outcome: new Uint32Array(places.length),
  };
}

/**
 * Maps the arena. The returned region owns the file descriptor; if mapping fails, the descriptor is
 * closed.
 */
function mapArena(
  native: Native,
  connection: ClientConnection,
  received: { frame: protocol.Frame; fd: number },
) {
  const { fd } = received;
  try {
    const hello = connection.take(protocol.decodeHelloReply(received.frame));
    if (hello.checksumAlgorithm !== protocol.CHECKSUM_XXH3_64) {
      const text = `unknown checksum algorithm of the agent: ${hello.checksumAlgorithm}`;
      throw new HearthError("ENGINE_PROTOCOL", text);
    }
    return { hello, arena: Region.map(native, { fd, bytes: hello.arenaBytes, writable: true }) };
  } catch (error) {
    native.closeFd(fd);
    throw error;
  }
}

/** Reads HELLO's reply together with its file descriptor, which an ordinary read would lose. */
async function receiveHello(native: Native, connection: ClientConnection, signal?: AbortSignal) {
  connection.flush();
  const deadline = systemClock.monotonicMs() + HELLO_MS;
  for (let pauseMs = 0.1; ; pauseMs = Math.min(20, pauseMs * 2)) {
    const received = connection.receiveWithFd(native);
    if (received !== null) return received;
    if (systemClock.monotonicMs() > deadline) {
      throw new HearthError("DEADLINE", `no answer to HELLO within ${HELLO_MS} ms`);
    }
    await sleep(systemClock, pauseMs, signal);
  }
}

export interface LookupAnswer extends protocol.LookupReply {
  /** `best[i]`: `TierBit` of the best tier that has block `i`, or 0. */
  readonly best: Uint8Array;
  /** Digests of the blocks, 32 bytes each. Null if the request did not ask for them. */
  readonly digests: Uint8Array | null;
}

/**
 * Requests of a connection that belongs to an engine (several connections with one engine id).
 * Usable if `hello.features` includes `Feature.engine`.
 */
export class ClientEngine {
  readonly #connection: ClientConnection;

  constructor(connection: ClientConnection) {
    this.#connection = connection;
  }

  /**
   * Adds this connection to an engine. Returns the engine's current number of connections, this one
   * included.
   */
  async join(request: protocol.JoinRequest): Promise<number> {
    const { members } = await this.#connection.ask(
      (output, id) => protocol.encodeJoinRequest(output, id, request),
      protocol.decodeJoinReply,
    );
    return members;
  }

  openNamespace(request: protocol.NamespaceRequest): Promise<protocol.NamespaceReply> {
    return this.#connection.ask(
      (output, id) => protocol.encodeNamespaceRequest(output, id, request),
      protocol.decodeNamespaceReply,
    );
  }

  /** Looks up blocks. `onPartial` is called for each reply except the last. */
  lookup(
    request: protocol.LookupRequest,
    onPartial: (reply: protocol.LookupReply) => void = () => undefined,
  ): Promise<LookupAnswer> {
    const best = new Uint8Array(request.count);
    const wantsDigests = (request.flags & protocol.LookupFlag.digests) !== 0;
    const digests = wantsDigests ? new Uint8Array(32 * request.count) : null;
    let answer: LookupAnswer | null = null;
    const decode = (frame: protocol.Frame) => {
      const bare = wantsDigests && frame.count === 0;
      const reply = protocol.decodeLookupReply(frame, best, bare ? null : digests);
      if ("fatal" in reply) return reply;
      if ((reply.flags & protocol.LookupReplyFlag.more) !== 0) {
        onPartial(reply);
        return "more" as const;
      }
      const { count } = frame;
      const named = digests?.subarray(0, 32 * count) ?? null;
      answer = { ...reply, best: best.subarray(0, count), digests: named };
      return null;
    };
    return this.#connection
      .request((output, id) => protocol.encodeLookupRequest(output, id, request), decode)
      .then(() => answer!);
  }

  unhold(holds: readonly number[], into: protocol.OutcomeItems): Promise<void> {
    return this.#connection.outcomes(
      (output, id) =>
        protocol.encodeUnholdRequest(output, id, { holds: holds.map((hold) => ({ id: hold })) }),
      into,
    );
  }

  announce(request: protocol.AnnounceRequest, into: protocol.OutcomeItems): Promise<void> {
    return this.#connection.outcomes(
      (output, id) => protocol.encodeAnnounceRequest(output, id, request),
      into,
    );
  }

  /** Sends a command and returns the agent's receipt. Both are JSON as UTF-8. */
  command(json: Uint8Array): Promise<Uint8Array> {
    return this.#connection.ask(
      (output, id) => protocol.encodeCommandRequest(output, id, json),
      protocol.decodeCommand,
    );
  }
}

/**
 * GPU memory that the agent may copy from and to: the part of an allocation that starts at
 * `offset`.
 */
export type ClientMemory = {
  readonly uuid: Uint8Array;
  readonly offset: number;
  readonly bytes: number;
  readonly allocationBytes: number;
} & (
  | { /** Handle from `cuIpcGetMemHandle`. */ readonly handle: Uint8Array }
  | { /** Descriptor of the exported allocation. The caller keeps it. */ readonly fd: number }
);

/** GPU requests of an `EngineClient`. */
export class ClientGpu {
  readonly #connection: ClientConnection;
  readonly #native: Native;
  #channel: number | null = null;

  constructor(connection: ClientConnection, native: Native) {
    this.#connection = connection;
    this.#native = native;
  }

  /**
   * Returns the GPUs that the agent can copy from and to. Empty if the agent makes no GPU copies.
   */
  async devices(): Promise<readonly protocol.GpuDeviceItem[]> {
    const { devices } = await this.#connection.ask(
      (output, id) => protocol.encodeGpuDevicesRequest(output, id, { wantsChannel: false }),
      (frame) => protocol.decodeGpuDevicesReply(frame),
    );
    return devices;
  }

  /**
   * Registers GPU memory with the agent and returns one result per item. The memory must stay
   * allocated until it is unregistered or the connection has closed. The first registration by file
   * descriptor opens an extra socket; that waits for the replies to all earlier requests.
   */
  async register(memories: readonly ClientMemory[]): Promise<protocol.GpuRegistered[]> {
    const all: protocol.GpuRegistered[] = [];
    for (let at = 0; at < memories.length; at += protocol.GPU_REGISTER_MAX) {
      all.push(...(await this.#registerSome(memories.slice(at, at + protocol.GPU_REGISTER_MAX))));
    }
    return all;
  }

  async #registerSome(
    memories: readonly ClientMemory[],
  ): Promise<readonly protocol.GpuRegistered[]> {
    for (const one of memories) if ("fd" in one) await this.#sendDescriptor(one.fd);
    const items = memories.map((one) => {
      const handle = "fd" in one ? new Uint8Array(protocol.GPU_HANDLE_BYTES) : one.handle;
      const kind = "fd" in one ? protocol.GpuMemoryKind.descriptor : protocol.GpuMemoryKind.ipc;
      const { uuid, offset, bytes, allocationBytes } = one;
      return { uuid, kind, offset, bytes, allocationBytes, handle };
    });
    const { registered } = await this.#connection.ask(
      (output, id) => protocol.encodeGpuRegisterRequest(output, id, { memories: items }),
      (frame) => protocol.decodeGpuRegisterReply(frame),
    );
    return registered;
  }

  async #sendDescriptor(fd: number): Promise<void> {
    this.#channel ??= await this.#openChannel();
    const sent = this.#native.sendFd(this.#channel, new Uint8Array(1), fd);
    if (typeof sent === "number") return;
    // After a failed request, the descriptors already sent would be taken for those of the next
    // request.
    this.#connection.close();
    throw new HearthError("ENGINE_CLOSED", `sending a descriptor failed: ${sent}`);
  }

  async #openChannel(): Promise<number> {
    const channel = await this.#connection.requestFd(
      this.#native,
      (output, id) => protocol.encodeGpuDevicesRequest(output, id, { wantsChannel: true }),
      (frame) => {
        this.#connection.take(protocol.decodeGpuDevicesReply(frame));
        return null;
      },
    );
    if (channel !== null) return channel;
    throw new HearthError("UNSUPPORTED", "the agent accepts no descriptors because it has no GPU");
  }

  /**
   * Unregisters memory. Outcomes: `ok`, `stale` (unknown number). Resolves when no copy uses the
   * memory any more.
   */
  unregister(memories: Readonly<protocol.MemoryItems>, into: protocol.OutcomeItems): Promise<void> {
    return this.#connection.outcomes(
      (output, id) => protocol.encodeGpuUnregisterRequest(output, id, memories),
      into,
    );
  }

  /**
   * Copies from GPU memory to slots that this client reserved. The engine's own writes to that
   * memory must have finished.
   */
  store(pieces: Readonly<protocol.PieceItems>, into: protocol.OutcomeItems): Promise<void> {
    return this.#copy(protocol.Op.gpuStore, { verify: false }, pieces, into);
  }

  /**
   * Copies from slots that this client acquired to GPU memory. Requests on the same registered
   * memory run in order.
   */
  load(
    pieces: Readonly<protocol.PieceItems>,
    options: Readonly<protocol.CopyOptions>,
    into: protocol.OutcomeItems,
  ): Promise<void> {
    return this.#copy(protocol.Op.gpuLoad, options, pieces, into);
  }

  #copy(
    op: protocol.CopyOp,
    options: Readonly<protocol.CopyOptions>,
    pieces: Readonly<protocol.PieceItems>,
    into: protocol.OutcomeItems,
  ): Promise<void> {
    return this.#connection.outcomes(
      (output, id) => protocol.gpuCopyRequests[op].encode(output, id, options, pieces),
      into,
    );
  }

  /**
   * Reports the outcomes of the previous offer and waits for the next one (blocks that the agent
   * suggests loading). Writes the offered blocks to `into` and returns the offer's number; 0 if
   * none was available.
   */
  async warm(
    wait: Readonly<protocol.WarmWait>,
    outcomes: Readonly<protocol.OutcomeItems>,
    into: protocol.DigestItems,
  ): Promise<number> {
    const head = { offer: 0 };
    await this.#connection.request(
      (output, id) => protocol.encodeGpuWarmRequest(output, id, wait, outcomes),
      (frame) => protocol.decodeGpuWarmReply(frame, head, into),
    );
    return head.offer;
  }

  /** Closes the extra socket. Called when the connection closes. */
  close(): void {
    if (this.#channel !== null) this.#native.closeFd(this.#channel);
    this.#channel = null;
  }
}
