import type { EngineSession } from "../store/index.ts";
import { answerLater, type Connection, type EngineContext, type Handlers } from "./connection.ts";
import * as protocol from "./protocol/index.ts";

const DRAINING = "the agent is stopping: it registers no memory and offers no blocks";

/**
 * Creates the handlers for GPU memory of engines, for copies between it and slots, and for offers
 * of blocks.
 */
export function gpuMemoryHandlers(context: EngineContext): Handlers {
  const asking = { wantsChannel: false };
  const handlers: Handlers = {
    [protocol.Op.gpuDevices]: (connection, frame) => {
      const bad = protocol.decodeGpuDevicesRequest(frame, asking);
      if (bad !== null) return bad;
      const { gpu } = connection.greeted!;
      const hasChannel = asking.wantsChannel && gpu.hasDevices;
      if (hasChannel) return answerWithChannel(context, connection, frame);
      const devices = devicesOf(context, connection);
      protocol.encodeGpuDevicesReply(connection.output, frame.requestId, { hasChannel, devices });
      return null;
    },
    [protocol.Op.gpuRegister]: (connection, frame, holder) => {
      if (context.draining()) return protocol.refusal(protocol.FrameStatus.draining, DRAINING);
      const items = protocol.decodeGpuRegisterRequest(frame);
      if (!items.ok) return items.refusal;
      const { requestId } = frame;
      const { gpu } = connection.greeted!;
      const answer = gpu.register(items.value.memories).then((registered) => {
        holder.near(gpu.node);
        protocol.encodeGpuRegisterReply(connection.output, requestId, { registered });
      });
      answerLater(context, connection, answer);
      return null;
    },
    [protocol.Op.gpuUnregister]: (connection, frame) => unregister(context, connection, frame),
    [protocol.Op.gpuStore]: (connection, frame, holder) => copy(context, connection, frame, holder),
    [protocol.Op.gpuLoad]: (connection, frame, holder) => copy(context, connection, frame, holder),
    [protocol.Op.gpuWarm]: (connection, frame) => warm(context, connection, frame),
  };
  return handlers;
}

function devicesOf({ gpu }: EngineContext, connection: Connection): protocol.GpuDeviceItem[] {
  return connection.greeted!.gpu.devices().map((device) => ({
    uuid: device.uuid,
    memoryBytes: device.memoryBytes,
    numaNode: device.numaNode,
    flags:
      (device.hasDmaBuf ? protocol.GpuDeviceFlag.dmaBuf : 0) |
      (gpu.hasBatches ? protocol.GpuDeviceFlag.batches : 0),
    state: device.lost === null ? protocol.GpuDeviceState.ok : protocol.GpuDeviceState.lost,
  }));
}

/**
 * Sends the reply to GPU_DEVICES alone, because the file descriptor is attached to the first byte
 * of its write.
 */
function answerWithChannel(
  context: EngineContext,
  connection: Connection,
  frame: protocol.Frame,
): protocol.Refusal | null {
  connection.flush();
  if (connection.closed) return null;
  if (protocol.pendingBytes(connection.output) > 0) {
    const text = "read all previous answers before requesting a socket for descriptors";
    return protocol.refusal(protocol.FrameStatus.limit, text);
  }
  const end = connection.greeted!.gpu.openChannel();
  if (end === null) {
    return protocol.refusal(
      protocol.FrameStatus.limit,
      "this connection already has a socket for descriptors",
    );
  }
  const devices = devicesOf(context, connection);
  protocol.encodeGpuDevicesReply(connection.output, frame.requestId, { hasChannel: true, devices });
  const sent = context.sendFd(connection, end);
  context.native.closeFd(end);
  if (sent === null) connection.close();
  else connection.sent(sent);
  return null;
}

function unregister(
  context: EngineContext,
  connection: Connection,
  frame: protocol.Frame,
): protocol.Refusal | null {
  const numbers = {
    count: 0,
    memory: new Uint32Array(Math.min(frame.count, context.limits.itemsMax)),
  };
  const bad = protocol.decodeGpuUnregisterRequest(frame, numbers);
  if (bad !== null) return bad;
  const { requestId } = frame;
  const { gpu } = connection.greeted!;
  const given = [...numbers.memory.subarray(0, numbers.count)];
  const freed = Promise.all(given.map((number) => gpu.unregister(number)));
  const answer = freed.then((outcomes) => {
    const out = { count: outcomes.length, outcome: Uint32Array.from(outcomes) };
    protocol.encodeOutcomesReply(connection.output, protocol.Op.gpuUnregister, requestId, out);
  });
  answerLater(context, connection, answer);
  return null;
}

/**
 * Handles GPU_STORE and GPU_LOAD. The device copies asynchronously, so the pieces are kept in a
 * batch of their own until it has finished.
 */
function copy(
  context: EngineContext,
  connection: Connection,
  frame: protocol.Frame,
  holder: EngineSession,
): protocol.Refusal | null {
  const capacity = Math.min(frame.count, context.limits.itemsMax);
  const pieces = protocol.createPieceItems(capacity);
  const options = { verify: false };
  const op = frame.op as protocol.CopyOp;
  const bad = protocol.gpuCopyRequests[op].decode(frame, options, pieces);
  if (bad !== null) return bad;
  const { requestId } = frame;
  const out: protocol.OutcomeItems = { count: 0, outcome: new Uint32Array(capacity) };
  const copied = connection.greeted!.gpu.copy(op, holder, pieces, options.verify, out);
  const answer = () => protocol.encodeOutcomesReply(connection.output, op, requestId, out);
  answerLater(context, connection, copied.then(answer));
  return null;
}

function warm(
  context: EngineContext,
  connection: Connection,
  frame: protocol.Frame,
): protocol.Refusal | null {
  if (context.draining()) return protocol.refusal(protocol.FrameStatus.draining, DRAINING);
  const wait = { offer: 0, deadlineMs: 0 };
  const outcomes = {
    count: 0,
    outcome: new Uint32Array(Math.min(frame.count, context.limits.itemsMax)),
  };
  const bad = protocol.decodeGpuWarmRequest(frame, wait, outcomes);
  if (bad !== null) return bad;
  const { warm: engine } = connection.greeted!;
  if (engine.waits) {
    return protocol.refusal(
      protocol.FrameStatus.limit,
      "this connection already waits for an offer",
    );
  }
  const { requestId } = frame;
  engine.wait(wait.offer, outcomes, wait.deadlineMs, (offer, blocks) => {
    if (connection.closed) return;
    protocol.encodeGpuWarmReply(connection.output, requestId, { offer }, blocks);
    connection.drained();
  });
  return null;
}
