import { HearthError } from "../core/index.ts";
import type { Native } from "../native/index.ts";
import type { ClientLine } from "./client-line.ts";
import {
  type CopyOp,
  type CopyOptions,
  type DigestItems,
  decodeGpuDevicesReply,
  decodeGpuRegisterReply,
  decodeGpuWarmReply,
  decodeOutcomesReply,
  encodeGpuCopyRequest,
  encodeGpuDevicesRequest,
  encodeGpuRegisterRequest,
  encodeGpuUnregisterRequest,
  encodeGpuWarmRequest,
  GPU_HANDLE_BYTES,
  GPU_REGISTER_MAX,
  type GpuDeviceItem,
  GpuMemoryKind,
  type GpuRegistered,
  type MemoryItems,
  Op,
  type OutcomeItems,
  type PieceItems,
  type WarmWait,
} from "./protocol/index.ts";

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
