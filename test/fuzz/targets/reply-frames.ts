import {
  acquireReply,
  checkPing,
  decodeCommand,
  decodeErrorReply,
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
  encodeCommandReply,
  encodeErrorReply,
  encodeGpuDevicesReply,
  encodeGpuRegisterReply,
  encodeGpuWarmReply,
  encodeHelloReply,
  encodeIdentifyReply,
  encodeJoinReply,
  encodeLookupReply,
  encodeMatchReply,
  encodeNamespaceReply,
  encodeOutcomesReply,
  encodePingReply,
  encodeReserveReply,
  encodeSessionListReply,
  encodeSessionStatusReply,
  type Frame,
  FrameStatus,
  Op,
  type OpName,
  type OutcomeOp,
  type Refusal,
  refusal,
} from "../../../src/engine/protocol/index.ts";
import { createAddressBatch, createHandleBatch } from "../../../src/store/index.ts";
import { goldenFrames } from "../corpus.ts";
import type { Target } from "../target.ts";
import { type Encode, type Read, readStream } from "./frame-stream.ts";

const ITEMS = 256;

const batch = createAddressBatch(ITEMS);
const handles = createHandleBatch(ITEMS);
const best = new Uint8Array(ITEMS);

function readOutcomes(frame: Frame): Encode | Refusal {
  const refused = decodeOutcomesReply(frame, handles);
  return (
    refused ?? ((out) => encodeOutcomesReply(out, frame.op as OutcomeOp, frame.requestId, handles))
  );
}

const READERS: Readonly<Record<OpName, Read>> = {
  hello(frame) {
    const hello = decodeHelloReply(frame);
    if (!hello.ok) return hello.refusal;
    return (out) => encodeHelloReply(out, frame.requestId, hello.value);
  },
  ping: (frame) => checkPing(frame) ?? ((out) => encodePingReply(out, frame)),
  identify: (frame) =>
    decodeIdentifyReply(frame, batch) ??
    ((out) => encodeIdentifyReply(out, frame.requestId, batch)),
  match(frame) {
    const leading = decodeMatchReply(frame, best);
    if (typeof leading !== "number") return leading;
    return (out) => encodeMatchReply(out, frame.requestId, frame.count, leading, best);
  },
  reserve: (frame) =>
    decodeReserveReply(frame, handles) ??
    ((out) => encodeReserveReply(out, frame.requestId, handles)),
  acquire: (frame) =>
    acquireReply.decode(frame, handles) ??
    ((out) => acquireReply.encode(out, frame.requestId, handles)),
  sessionStatus(frame) {
    const status = decodeSessionStatusReply(frame);
    if (!status.ok) return status.refusal;
    return (out) => encodeSessionStatusReply(out, frame.requestId, status.value);
  },
  sessionList(frame) {
    const page = decodeSessionListReply(frame);
    if (!page.ok) return page.refusal;
    return (out) => encodeSessionListReply(out, frame.requestId, page.value);
  },
  commit: readOutcomes,
  abort: readOutcomes,
  release: readOutcomes,
  report: readOutcomes,
  gpuStored: readOutcomes,
  gpuEvicted: readOutcomes,
  sessionCommit: readOutcomes,
  sessionRelease: readOutcomes,
  alias: readOutcomes,
  gpuDevices(frame) {
    const devices = decodeGpuDevicesReply(frame);
    if (!devices.ok) return devices.refusal;
    return (out) => encodeGpuDevicesReply(out, frame.requestId, devices.value);
  },
  gpuRegister(frame) {
    const answers = decodeGpuRegisterReply(frame);
    if (!answers.ok) return answers.refusal;
    return (out) => encodeGpuRegisterReply(out, frame.requestId, answers.value);
  },
  gpuUnregister: readOutcomes,
  gpuStore: readOutcomes,
  gpuLoad: readOutcomes,
  gpuWarm(frame) {
    const head = { offer: 0 };
    return (
      decodeGpuWarmReply(frame, head, batch) ??
      ((out) => encodeGpuWarmReply(out, frame.requestId, head, batch))
    );
  },
  join(frame) {
    const joined = decodeJoinReply(frame);
    if (!joined.ok) return joined.refusal;
    return (out) => encodeJoinReply(out, frame.requestId, joined.value);
  },
  lookup(frame) {
    decodeLookupReply(frame, best, null);
    const digests = new Uint8Array(ITEMS * 32);
    const seen = decodeLookupReply(frame, best, digests);
    if ("fatal" in seen) return seen;
    return (out) => encodeLookupReply(out, frame.requestId, seen, frame.count, best, digests);
  },
  unhold: readOutcomes,
  announce: readOutcomes,
  command(frame) {
    const receipt = decodeCommand(frame);
    if (!receipt.ok) return receipt.refusal;
    return (out) => encodeCommandReply(out, frame.requestId, receipt.value);
  },
  namespace(frame) {
    const answer = decodeNamespaceReply(frame);
    if (!answer.ok) return answer.refusal;
    return (out) => encodeNamespaceReply(out, frame.requestId, answer.value);
  },
};

const BY_OP = new Map<number, Read>(
  Object.entries(READERS).map(([name, read]) => [Op[name as OpName], read]),
);

function readError(frame: Frame): Encode | Refusal {
  const error = decodeErrorReply(frame);
  if (!error.ok) return error.refusal;
  const status = error.value.status as Exclude<FrameStatus, 0>;
  return (out) => encodeErrorReply(out, frame.op, frame.requestId, status, error.value.text);
}

/** A client knows from its request what an answer is; still every decoder bears every answer. */
function bearAll(frame: Frame): void {
  readError(frame);
  for (const read of BY_OP.values()) read(frame);
}

function readReply(frame: Frame): Encode | Refusal {
  bearAll(frame);
  if (frame.status !== FrameStatus.ok) return readError(frame);
  const read = BY_OP.get(frame.op);
  return read?.(frame) ?? refusal(FrameStatus.unknownOp, "no such operation");
}

/** Everything an agent may answer, frame by frame. */
export function replyFrames(): Target {
  return {
    name: "replies",
    corpus: goldenFrames("reply"),
    run: (input, saw) => readStream(input, "replies", readReply, saw),
  };
}
