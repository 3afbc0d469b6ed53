import { HearthError, sleep, systemClock } from "../core/index.ts";
import { type Native, type NativeBuffer, Region } from "../native/index.ts";
import type { HandleBatch } from "../store/index.ts";
import { ClientLine } from "./client-connection.ts";
import {
  type AcquireOptions,
  type AliasKind,
  type AnnounceRequest,
  type BlockItems,
  CHECKSUM_XXH3_64,
  type CopyOp,
  type CopyOptions,
  type DigestItems,
  decodeAcquireReply,
  decodeCommand,
  decodeGpuDevicesReply,
  decodeGpuRegisterReply,
  decodeGpuWarmReply,
  decodeHelloReply,
  decodeIdentifyReply,
  decodeJoinReply,
  decodeLookupReply,
  decodeMatchReply,
  decodeNamespaceReply,
  decodeOutcomesReply,
  decodeReserveReply,
  decodeSessionListReply,
  decodeSessionStatusReply,
  encodeAcquireRequest,
  encodeAliasRequest,
  encodeAnnounceRequest,
  encodeCommandRequest,
  encodeCommitRequest,
  encodeGpuCopyRequest,
  encodeGpuDevicesRequest,
  encodeGpuEvictedRequest,
  encodeGpuRegisterRequest,
  encodeGpuStoredRequest,
  encodeGpuUnregisterRequest,
  encodeGpuWarmRequest,
  encodeHandlesRequest,
  encodeHelloRequest,
  encodeIdentifyRequest,
  encodeJoinRequest,
  encodeLookupRequest,
  encodeMatchRequest,
  encodeNamespaceRequest,
  encodePingRequest,
  encodeReserveRequest,
  encodeSessionCommitRequest,
  encodeSessionListRequest,
  encodeSessionRequest,
  encodeUnholdRequest,
  Feature,
  type Frame,
  GPU_HANDLE_BYTES,
  GPU_REGISTER_MAX,
  type GpuDeviceItem,
  GpuMemoryKind,
  type GpuRegistered,
  type HandleItems,
  type HelloReply,
  type IdentifyRequest,
  type JoinRequest,
  LookupFlag,
  type LookupReply,
  LookupReplyFlag,
  type LookupRequest,
  type MemoryItems,
  type NamespaceReply,
  type NamespaceRequest,
  Op,
  Outcome,
  type OutcomeItems,
  type PieceItems,
  PROTOCOL_VERSION,
  type SessionListReply,
  type SessionListRequest,
  type SessionStatus,
  type WarmWait,
} from "./protocol/index.ts";

export interface ClientOptions {
  readonly socketPath: string;
  /** Canonical encoding of the namespace manifest. */
  readonly manifest: Uint8Array;
  /** How the agent names this client in its logs. */
  readonly name: string;
  readonly signal?: AbortSignal;
  /** The manifest names a MAC key (`withMacKey`): blocks travel with their MACs. */
  readonly hasMacs?: boolean;
}

/** How long to wait for the answer to the hello. */
const HELLO_MS = 5_000;

/**
 * An engine's end of the engine plane. Requests may overlap; each promise settles when its answer
 * has come, and the answer is in the batch that the caller gave. The arena is mapped as `arena`.
 */
export class EngineClient implements AsyncDisposable {
  readonly hello: HelloReply;
  readonly arena: Region;
  /** Of use where `hello.features` has `Feature.gpu`. */
  readonly gpu: ClientGpu;
  /** Where the hello's answer has `Feature.engine`. */
  readonly engine: ClientEngine;
  readonly #line: ClientLine;

  private constructor(native: Native, line: ClientLine, hello: HelloReply, arena: Region) {
    this.#line = line;
    this.gpu = new ClientGpu(line, native);
    this.engine = new ClientEngine(line);
    this.hello = hello;
    this.arena = arena;
  }

  /** Throws ENGINE_CLOSED where nobody answers, ENGINE_REFUSED with the agent's words. */
  static async connect(native: Native, options: ClientOptions): Promise<EngineClient> {
    const line = await ClientLine.open(options.socketPath);
    try {
      encodeHelloRequest(line.output, 0, {
        versionMin: PROTOCOL_VERSION,
        versionMax: PROTOCOL_VERSION,
        features:
          Feature.gpu | Feature.engine | Feature.report | (options.hasMacs ? Feature.mac : 0),
        name: options.name,
        manifest: options.manifest,
      });
      const received = await receiveHello(native, line, options.signal);
      const { hello, arena } = mapArena(native, line, received);
      if (options.hasMacs && (hello.features & Feature.mac) === 0) {
        throw new HearthError("ENGINE_REFUSED", "this agent knows no MACs of blocks", {
          fix: "bring the agent up to date, or use the namespace without a key",
        });
      }
      line.start(hello.frameBytesMax);
      return new EngineClient(native, line, hello, arena);
    } catch (error) {
      line.close();
      throw error;
    }
  }

  /** Resolves when the line is gone, with the reason. */
  get closed(): Promise<HearthError> {
    return this.#line.closed;
  }

  async ping(payload: Uint8Array): Promise<void> {
    await this.#line.request(
      (output, id) => encodePingRequest(output, id, payload),
      () => null,
    );
  }

  /** Digests for tokens, chain keys or engine hashes, into `into`. */
  identify(request: Readonly<IdentifyRequest>, into: DigestItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeIdentifyRequest(output, id, request),
      (frame) => decodeIdentifyReply(frame, into),
    );
  }

  /** Length of the leading run; `best[i]` is the best tier's bit. */
  async match(blocks: Readonly<DigestItems>, tiers: number, best: Uint8Array): Promise<number> {
    let leading = 0;
    await this.#line.request(
      (output, id) => encodeMatchRequest(output, id, tiers, blocks),
      (frame) => {
        const answer = decodeMatchReply(frame, best);
        if (typeof answer !== "number") return answer;
        leading = answer;
        return null;
      },
    );
    return leading;
  }

  /** `namespace`: a handle that `engine.openNamespace` gave; 0 = the connection's own. */
  reserve(
    blocks: Readonly<BlockItems>,
    session: bigint,
    into: HandleBatch,
    namespace = 0,
  ): Promise<void> {
    return this.#line.request(
      (output, id) => encodeReserveRequest(output, id, session, blocks, namespace),
      (frame) => decodeReserveReply(frame, into),
    );
  }

  /** Outcomes go into `handles` itself. */
  commit(handles: HandleBatch): Promise<void> {
    const macs = this.#macsOf(handles);
    return this.#line.request(
      (output, id) => encodeCommitRequest(output, id, handles, false, macs),
      (frame) => decodeOutcomesReply(frame, handles),
    );
  }

  abort(handles: HandleItems & OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeHandlesRequest(output, Op.abort, id, handles),
      (frame) => decodeOutcomesReply(frame, handles),
    );
  }

  acquire(
    blocks: Readonly<DigestItems>,
    options: Readonly<AcquireOptions>,
    into: HandleBatch,
  ): Promise<void> {
    return this.#line.request(
      (output, id) => encodeAcquireRequest(output, id, options, blocks),
      (frame) => decodeAcquireReply(frame, into, this.#macsOf(into)),
    );
  }

  #macsOf(handles: HandleBatch): Uint8Array | null {
    return (this.hello.features & Feature.mac) !== 0 ? handles.mac : null;
  }

  /** Gives acquired slots back, without waiting for an answer. */
  release(handles: Readonly<HandleItems>): void {
    this.#line.send((output, id) => encodeHandlesRequest(output, Op.release, id, handles, true));
  }

  /**
   * Copies acquired block `i` into `into` and verifies the copy. False: it is not what was
   * committed; give the block back with `report`.
   */
  copyOut(handles: Readonly<HandleBatch>, i: number, into: NativeBuffer): boolean {
    const [offset, bytes] = [handles.offset[i]!, handles.bytes[i]!];
    return this.arena.copyOut(offset, into, bytes, true) === handles.checksum[i]!;
  }

  /**
   * Gives back acquired slots whose copies did not verify. When it resolves, the agent has looked
   * at them: `corrupt` is dropped, so that it can be stored anew. An older agent looks at none.
   */
  async report(handles: HandleItems & OutcomeItems): Promise<void> {
    if ((this.hello.features & Feature.report) !== 0) {
      await this.#line.request(
        (output, id) => encodeHandlesRequest(output, Op.report, id, handles),
        (frame) => decodeOutcomesReply(frame, handles),
      );
      return;
    }
    this.release(handles);
    handles.outcome.fill(Outcome.ok, 0, handles.count);
  }

  /** Gives all of them back: those of `damaged`, by their places, as `report` does. */
  async giveBack(handles: Readonly<HandleBatch>, damaged: readonly number[]): Promise<void> {
    const wrong = new Set(damaged);
    const right = [...Array(handles.count).keys()].filter((i) => !wrong.has(i));
    if (right.length > 0) this.release(chosen(handles, right));
    if (damaged.length > 0) await this.report(chosen(handles, damaged));
  }

  gpuStored(blocks: Readonly<BlockItems>, into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeGpuStoredRequest(output, id, blocks),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  gpuEvicted(blocks: Readonly<DigestItems>, into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeGpuEvictedRequest(output, id, blocks),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  sessionCommit(session: bigint, block: Readonly<DigestItems>, into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeSessionCommitRequest(output, id, session, block),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  sessionRelease(session: bigint, into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeSessionRequest(output, Op.sessionRelease, id, session),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  async sessionStatus(session: bigint): Promise<SessionStatus> {
    let status: SessionStatus | undefined;
    await this.#line.request(
      (output, id) => encodeSessionRequest(output, Op.sessionStatus, id, session),
      (frame) => {
        status = this.#line.take(decodeSessionStatusReply(frame));
        return null;
      },
    );
    return status!;
  }

  /** One page; `next` of it is the `after` of the next. */
  async sessionList(request: Readonly<SessionListRequest>): Promise<SessionListReply> {
    let page: SessionListReply | undefined;
    await this.#line.request(
      (output, id) => encodeSessionListRequest(output, id, request),
      (frame) => {
        page = this.#line.take(decodeSessionListReply(frame));
        return null;
      },
    );
    return page!;
  }

  alias(
    blocks: Readonly<DigestItems>,
    kind: AliasKind,
    aliases: Uint8Array,
    into: OutcomeItems,
  ): Promise<void> {
    return this.#line.request(
      (output, id) => encodeAliasRequest(output, id, kind, blocks, aliases),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  /** Closes the line, then the view of the arena: nothing may still read from it. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#line.close();
    await this.#line.closed;
    this.gpu.close();
    this.arena[Symbol.dispose]();
  }
}

/** The handles at these places. */
function chosen(handles: Readonly<HandleItems>, places: readonly number[]) {
  return {
    count: places.length,
    slot: Uint32Array.from(places, (i) => handles.slot[i]!),
    generation: Uint32Array.from(places, (i) => handles.generation[i]!),
    outcome: new Uint32Array(places.length),
  };
}

/** The descriptor is the region's from here on; where there is none, it is closed. */
function mapArena(native: Native, line: ClientLine, received: { frame: Frame; fd: number }) {
  const { fd } = received;
  try {
    const hello = line.take(decodeHelloReply(received.frame));
    if (hello.checksumAlgorithm !== CHECKSUM_XXH3_64) {
      const text = `the agent's checksum algorithm ${hello.checksumAlgorithm} is not known here`;
      throw new HearthError("ENGINE_PROTOCOL", text);
    }
    return { hello, arena: Region.map(native, { fd, bytes: hello.arenaBytes, writable: true }) };
  } catch (error) {
    native.closeFd(fd);
    throw error;
  }
}

/** The first answer must be read with its descriptor: an ordinary read would lose it. */
async function receiveHello(native: Native, line: ClientLine, signal?: AbortSignal) {
  line.flush();
  const deadline = systemClock.monotonicMs() + HELLO_MS;
  for (let pauseMs = 0.1; ; pauseMs = Math.min(20, pauseMs * 2)) {
    const received = line.receiveWithFd(native);
    if (received !== null) return received;
    if (systemClock.monotonicMs() > deadline) {
      throw new HearthError("DEADLINE", `no answer to the hello within ${HELLO_MS} ms`);
    }
    await sleep(systemClock, pauseMs, signal);
  }
}

export interface LookupAnswer extends LookupReply {
  /** The best tier's bit of each block. */
  readonly best: Uint8Array;
  /** 32 bytes a block; null: they were not asked for. */
  readonly digests: Uint8Array | null;
}

/** What a client asks for as part of an engine; only if the hello's answer has `Feature.engine`. */
export class ClientEngine {
  readonly #line: ClientLine;

  constructor(line: ClientLine) {
    this.#line = line;
  }

  /** Connections of the engine now. */
  join(request: JoinRequest): Promise<number> {
    return this.#ask(
      (output, id) => encodeJoinRequest(output, id, request),
      (frame) => {
        const members = decodeJoinReply(frame);
        return typeof members === "number" ? members : fail(members.text);
      },
    );
  }

  openNamespace(request: NamespaceRequest): Promise<NamespaceReply> {
    return this.#ask(
      (output, id) => encodeNamespaceRequest(output, id, request),
      (frame) => this.#line.take(decodeNamespaceReply(frame)),
    );
  }

  /** `onPartial` is called for each answer before the last. */
  lookup(
    request: LookupRequest,
    onPartial: (reply: LookupReply) => void = () => undefined,
  ): Promise<LookupAnswer> {
    const best = new Uint8Array(request.count);
    const wantsDigests = (request.flags & LookupFlag.digests) !== 0;
    const digests = wantsDigests ? new Uint8Array(32 * request.count) : null;
    let answer: LookupAnswer | null = null;
    const decode = (frame: Frame) => {
      const bare = wantsDigests && frame.count === 0;
      const reply = decodeLookupReply(frame, best, bare ? null : digests);
      if ("fatal" in reply) return reply;
      if ((reply.flags & LookupReplyFlag.more) !== 0) {
        onPartial(reply);
        return "more" as const;
      }
      const { count } = frame;
      const named = digests?.subarray(0, 32 * count) ?? null;
      answer = { ...reply, best: best.subarray(0, count), digests: named };
      return null;
    };
    return this.#line
      .request((output, id) => encodeLookupRequest(output, id, request), decode)
      .then(() => answer!);
  }

  unhold(holds: readonly number[], into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeUnholdRequest(output, id, holds),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  announce(request: AnnounceRequest, into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeAnnounceRequest(output, id, request),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  /** The receipt, JSON as UTF-8. */
  command(json: Uint8Array): Promise<Uint8Array> {
    return this.#ask(
      (output, id) => encodeCommandRequest(output, id, json),
      (frame) => this.#line.take(decodeCommand(frame)),
    );
  }

  async #ask<Value>(
    encode: Parameters<ClientLine["request"]>[0],
    decode: (frame: Frame) => Value,
  ): Promise<Value> {
    let value: Value | undefined;
    await this.#line.request(encode, (frame) => {
      value = decode(frame);
      return null;
    });
    return value!;
  }
}

function fail(text: string): never {
  throw new HearthError("ENGINE_PROTOCOL", `the agent's answer: ${text}`);
}

/** Memory for the agent to copy from and to: the part of an allocation from `offset` on. */
export type ClientMemory = {
  readonly uuid: Uint8Array;
  readonly offset: number;
  readonly bytes: number;
  readonly allocationBytes: number;
} & (
  | { /** What `cuIpcGetMemHandle` gave. */ readonly handle: Uint8Array }
  | { /** What the allocation was exported as; stays the caller's. */ readonly fd: number }
);

/** The GPU's part of an engine's end of the engine plane. Made by `EngineClient`. */
export class ClientGpu {
  readonly #line: ClientLine;
  readonly #native: Native;
  #channel: number | null = null;

  constructor(line: ClientLine, native: Native) {
    this.#line = line;
    this.#native = native;
  }

  /** The GPUs that the agent copies from and to; none where it copies nothing. */
  async devices(): Promise<readonly GpuDeviceItem[]> {
    let devices: readonly GpuDeviceItem[] = [];
    await this.#line.request(
      (output, id) => encodeGpuDevicesRequest(output, id, { wantsChannel: false }),
      (frame) => {
        ({ devices } = this.#line.take(decodeGpuDevicesReply(frame)));
        return null;
      },
    );
    return devices;
  }

  /**
   * Hands memory to the agent; one answer for each. It must stay allocated until it is unregistered
   * or the connection has closed. Descriptors need a socket of their own, which is asked for with
   * the first of them: requests whose answers are still on their way hold that up.
   */
  async register(memories: readonly ClientMemory[]): Promise<GpuRegistered[]> {
    const all: GpuRegistered[] = [];
    for (let at = 0; at < memories.length; at += GPU_REGISTER_MAX) {
      all.push(...(await this.#registerSome(memories.slice(at, at + GPU_REGISTER_MAX))));
    }
    return all;
  }

  async #registerSome(memories: readonly ClientMemory[]): Promise<GpuRegistered[]> {
    for (const one of memories) if ("fd" in one) await this.#sendDescriptor(one.fd);
    const items = memories.map((one) => {
      const handle = "fd" in one ? new Uint8Array(GPU_HANDLE_BYTES) : one.handle;
      const kind = "fd" in one ? GpuMemoryKind.descriptor : GpuMemoryKind.ipc;
      const { uuid, offset, bytes, allocationBytes } = one;
      return { uuid, kind, offset, bytes, allocationBytes, handle };
    });
    let answers: GpuRegistered[] = [];
    await this.#line.request(
      (output, id) => encodeGpuRegisterRequest(output, id, items),
      (frame) => {
        answers = this.#line.take(decodeGpuRegisterReply(frame));
        return null;
      },
    );
    return answers;
  }

  async #sendDescriptor(fd: number): Promise<void> {
    this.#channel ??= await this.#openChannel();
    const sent = this.#native.sendFd(this.#channel, new Uint8Array(1), fd);
    if (typeof sent === "number") return;
    // Those that were sent before would be taken for the next ones.
    this.#line.close();
    throw new HearthError("ENGINE_CLOSED", `a descriptor could not be sent: ${sent}`);
  }

  async #openChannel(): Promise<number> {
    const channel = await this.#line.requestFd(
      this.#native,
      (output, id) => encodeGpuDevicesRequest(output, id, { wantsChannel: true }),
      (frame) => {
        this.#line.take(decodeGpuDevicesReply(frame));
        return null;
      },
    );
    if (channel !== null) return channel;
    throw new HearthError("UNSUPPORTED", "the agent takes no descriptors: it has no GPU");
  }

  /** Outcomes: `ok`, `stale`. Resolves when no copy uses the memory any more. */
  unregister(memories: Readonly<MemoryItems>, into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeGpuUnregisterRequest(output, id, memories),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  /** From memory to slots reserved by this client; what wrote the memory must be over. */
  store(pieces: Readonly<PieceItems>, into: OutcomeItems): Promise<void> {
    return this.#copy(Op.gpuStore, { verify: false }, pieces, into);
  }

  /** From slots acquired by this client to memory. Requests on one memory run in their order. */
  load(
    pieces: Readonly<PieceItems>,
    options: Readonly<CopyOptions>,
    into: OutcomeItems,
  ): Promise<void> {
    return this.#copy(Op.gpuLoad, options, pieces, into);
  }

  #copy(
    op: CopyOp,
    options: Readonly<CopyOptions>,
    pieces: Readonly<PieceItems>,
    into: OutcomeItems,
  ): Promise<void> {
    return this.#line.request(
      (output, id) => encodeGpuCopyRequest(output, op, id, options, pieces),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  /**
   * Says what became of the blocks of the offer before, and waits for the next: its number, its
   * blocks in `into`; 0: none came.
   */
  async warm(
    wait: Readonly<WarmWait>,
    outcomes: Readonly<OutcomeItems>,
    into: DigestItems,
  ): Promise<number> {
    let offer = 0;
    await this.#line.request(
      (output, id) => encodeGpuWarmRequest(output, id, wait, outcomes),
      (frame) => {
        const answer = decodeGpuWarmReply(frame, into);
        if (typeof answer !== "number") return answer;
        offer = answer;
        return null;
      },
    );
    return offer;
  }

  /** With the line. */
  close(): void {
    if (this.#channel !== null) this.#native.closeFd(this.#channel);
    this.#channel = null;
  }
}
