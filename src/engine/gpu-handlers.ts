import type { Native } from "../native/index.ts";
import type { EngineSession } from "../store/index.ts";
import type { Connection } from "./connection.ts";
import type { GpuPlane } from "./gpu-copies.ts";
import {
  type CopyOp,
  createPieceItems,
  decodeGpuDevicesRequest,
  decodeGpuRegisterRequest,
  decodeGpuUnregisterRequest,
  decodeGpuWarmRequest,
  encodeGpuDevicesReply,
  encodeGpuRegisterReply,
  encodeGpuWarmReply,
  encodeOutcomesReply,
  type Frame,
  FrameStatus,
  GpuDeviceFlag,
  type GpuDeviceItem,
  GpuDeviceState,
  gpuCopyRequests,
  Op,
  type OutcomeItems,
  pendingBytes,
  type Refusal,
  refusal,
} from "./protocol/index.ts";

export interface GpuHandlerContext {
  readonly native: Pick<Native, "closeFd">;
  readonly gpu: GpuPlane;
  readonly itemsMax: number;
  draining(): boolean;
  /**
   * Sends the connection's pending output together with a descriptor. Returns the bytes sent, or
   * null.
   */
  sendFd(connection: Connection, fd: number): number | null;
  /** Lets other requests continue until `answered` has written its answer. */
  answerLater(connection: Connection, answered: Promise<void>): void;
}

type Handler = (connection: Connection, frame: Frame, holder: EngineSession) => Refusal | null;

const DRAINING = "the agent is stopping: it registers no memory and offers no blocks";

/** Handlers for GPU memory of engines, copies between it and slots, and offers of blocks. */
export function gpuMemoryHandlers(context: GpuHandlerContext): Partial<Record<number, Handler>> {
  const asking = { wantsChannel: false };
  const handlers: Partial<Record<number, Handler>> = {
    [Op.gpuDevices]: (connection, frame) => {
      const bad = decodeGpuDevicesRequest(frame, asking);
      if (bad !== null) return bad;
      const { gpu } = connection.greeted!;
      const hasChannel = asking.wantsChannel && gpu.hasDevices;
      if (hasChannel) return answerWithChannel(context, connection, frame);
      const devices = devicesOf(context, connection);
      encodeGpuDevicesReply(connection.output, frame.requestId, { hasChannel, devices });
      return null;
    },
    [Op.gpuRegister]: (connection, frame, holder) => {
      if (context.draining()) return refusal(FrameStatus.draining, DRAINING);
      const items = decodeGpuRegisterRequest(frame);
      if (!items.ok) return items.refusal;
      const { requestId } = frame;
      const { gpu } = connection.greeted!;
      const answer = gpu.register(items.value.memories).then((registered) => {
        holder.near(gpu.node);
        encodeGpuRegisterReply(connection.output, requestId, { registered });
      });
      context.answerLater(connection, answer);
      return null;
    },
    [Op.gpuUnregister]: (connection, frame) => unregister(context, connection, frame),
    [Op.gpuStore]: (connection, frame, holder) => copy(context, connection, frame, holder),
    [Op.gpuLoad]: (connection, frame, holder) => copy(context, connection, frame, holder),
    [Op.gpuWarm]: (connection, frame) => warm(context, connection, frame),
  };
  return handlers;
}

function devicesOf({ gpu }: GpuHandlerContext, connection: Connection): GpuDeviceItem[] {
  return connection.greeted!.gpu.devices().map((device) => ({
    uuid: device.uuid,
    memoryBytes: device.memoryBytes,
    numaNode: device.numaNode,
    flags:
      (device.hasDmaBuf ? GpuDeviceFlag.dmaBuf : 0) | (gpu.hasBatches ? GpuDeviceFlag.batches : 0),
    state: device.lost === null ? GpuDeviceState.ok : GpuDeviceState.lost,
  }));
}

/** The answer is sent alone, because a descriptor travels with the first byte of its write. */
function answerWithChannel(
  context: GpuHandlerContext,
  connection: Connection,
  frame: Frame,
): Refusal | null {
  connection.flush();
  if (connection.closed) return null;
  if (pendingBytes(connection.output) > 0) {
    const text = "read all previous answers before requesting a socket for descriptors";
    return refusal(FrameStatus.limit, text);
  }
  const end = connection.greeted!.gpu.openChannel();
  if (end === null) {
    return refusal(FrameStatus.limit, "this connection already has a socket for descriptors");
  }
  const devices = devicesOf(context, connection);
  encodeGpuDevicesReply(connection.output, frame.requestId, { hasChannel: true, devices });
  const sent = context.sendFd(connection, end);
  context.native.closeFd(end);
  if (sent === null) connection.close();
  else connection.sent(sent);
  return null;
}

function unregister(
  context: GpuHandlerContext,
  connection: Connection,
  frame: Frame,
): Refusal | null {
  const numbers = { count: 0, memory: new Uint32Array(Math.min(frame.count, context.itemsMax)) };
  const bad = decodeGpuUnregisterRequest(frame, {}, numbers);
  if (bad !== null) return bad;
  const { requestId } = frame;
  const { gpu } = connection.greeted!;
  const given = [...numbers.memory.subarray(0, numbers.count)];
  const freed = Promise.all(given.map((number) => gpu.unregister(number)));
  const answer = freed.then((outcomes) => {
    const out = { count: outcomes.length, outcome: Uint32Array.from(outcomes) };
    encodeOutcomesReply(connection.output, Op.gpuUnregister, requestId, out);
  });
  context.answerLater(connection, answer);
  return null;
}

/**
 * The device copies asynchronously, so the pieces are kept in their own batch until it has
 * finished.
 */
function copy(
  context: GpuHandlerContext,
  connection: Connection,
  frame: Frame,
  holder: EngineSession,
): Refusal | null {
  const capacity = Math.min(frame.count, context.itemsMax);
  const pieces = createPieceItems(capacity);
  const options = { verify: false };
  const op = frame.op as CopyOp;
  const bad = gpuCopyRequests[op].decode(frame, options, pieces);
  if (bad !== null) return bad;
  const { requestId } = frame;
  const out: OutcomeItems = { count: 0, outcome: new Uint32Array(capacity) };
  const copied = connection.greeted!.gpu.copy(op, holder, pieces, options.verify, out);
  const answer = () => encodeOutcomesReply(connection.output, op, requestId, out);
  context.answerLater(connection, copied.then(answer));
  return null;
}

function warm(context: GpuHandlerContext, connection: Connection, frame: Frame): Refusal | null {
  if (context.draining()) return refusal(FrameStatus.draining, DRAINING);
  const wait = { offer: 0, deadlineMs: 0 };
  const outcomes = {
    count: 0,
    outcome: new Uint32Array(Math.min(frame.count, context.itemsMax)),
  };
  const bad = decodeGpuWarmRequest(frame, wait, outcomes);
  if (bad !== null) return bad;
  const { warm: engine } = connection.greeted!;
  if (engine.waits) {
    return refusal(FrameStatus.limit, "this connection already waits for an offer");
  }
  const { requestId } = frame;
  engine.wait(wait.offer, outcomes, wait.deadlineMs, (offer, blocks) => {
    if (connection.closed) return;
    encodeGpuWarmReply(connection.output, requestId, offer, blocks);
    connection.drained();
  });
  return null;
}
