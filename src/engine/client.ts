import { HearthError, sleep, systemClock } from "../core/index.ts";
import { type Native, type NativeBuffer, Region } from "../native/index.ts";
import type { HandleBatch } from "../store/index.ts";
import { ClientEngine } from "./client-engine.ts";
import { ClientGpu } from "./client-gpu.ts";
import { ClientLine } from "./client-line.ts";
import {
  type AcquireOptions,
  type AliasKind,
  type BlockItems,
  CHECKSUM_XXH3_64,
  type DigestItems,
  decodeAcquireReply,
  decodeHelloReply,
  decodeIdentifyReply,
  decodeMatchReply,
  decodeOutcomesReply,
  decodeReserveReply,
  decodeSessionListReply,
  decodeSessionStatusReply,
  encodeAcquireRequest,
  encodeAliasRequest,
  encodeCommitRequest,
  encodeGpuEvictedRequest,
  encodeGpuStoredRequest,
  encodeHandlesRequest,
  encodeHelloRequest,
  encodeIdentifyRequest,
  encodeMatchRequest,
  encodePingRequest,
  encodeReserveRequest,
  encodeSessionCommitRequest,
  encodeSessionListRequest,
  encodeSessionRequest,
  Feature,
  type Frame,
  type HandleItems,
  type HelloReply,
  type IdentifyRequest,
  Op,
  Outcome,
  type OutcomeItems,
  PROTOCOL_VERSION,
  type SessionListReply,
  type SessionListRequest,
  type SessionStatus,
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
