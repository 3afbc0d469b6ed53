import {
  type AcquireOptions,
  AliasKind,
  type CopyOp,
  checkPing,
  commitRequest,
  createPieceItems,
  type Decoded,
  decodeAcquireRequest,
  decodeAliasRequest,
  decodeAnnounceRequest,
  decodeCommand,
  decodeGpuDevicesRequest,
  decodeGpuEvictedRequest,
  decodeGpuRegisterRequest,
  decodeGpuStoredRequest,
  decodeGpuUnregisterRequest,
  decodeGpuWarmRequest,
  decodeHandlesRequest,
  decodeHelloRequest,
  decodeIdentifyRequest,
  decodeJoinRequest,
  decodeLookupRequest,
  decodeMatchRequest,
  decodeNamespaceRequest,
  decodeReserveRequest,
  decodeSessionCommitRequest,
  decodeSessionListRequest,
  decodeUnholdRequest,
  emptyIdentifyRequest,
  encodeAcquireRequest,
  encodeAliasRequest,
  encodeAnnounceRequest,
  encodeCommandRequest,
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
  encodeUnholdRequest,
  type Frame,
  FrameStatus,
  gpuCopyRequests,
  Op,
  type OpName,
  type Output,
  type Refusal,
  refusal,
  sessionRequests,
  wantsReply,
} from "../../../src/engine/protocol/index.ts";
import { createAddressBatch, createHandleBatch } from "../../../src/store/index.ts";
import { goldenFrames } from "../corpus.ts";
import type { Target } from "../target.ts";
import { generateRequests } from "./frame-maker.ts";
import { type Encode, FRAME_BYTES_MAX, type Read, readStream } from "./frame-stream.ts";

const ITEMS = 256;
const BLOCK_TOKENS = 16;

const batch = createAddressBatch(ITEMS);
const handles = createHandleBatch(ITEMS);
const aliased = { ...batch, aliases: new Uint8Array(ITEMS * 32) };
const session = { session: 0n, namespace: 0 };
const listing = { session: 0n, after: 0, max: 0 };
const matching = { tiers: 0 };
const acquire: AcquireOptions = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
const aliasing = { kind: AliasKind.engineHash as AliasKind };
const identify = emptyIdentifyRequest();
const devices = { wantsChannel: false };
const pieces = createPieceItems(ITEMS);
const copying = { verify: false };
const wait = { offer: 0, deadlineMs: 0 };

function either(refused: Refusal | null, encode: Encode): Encode | Refusal {
  return refused ?? encode;
}

function taken<Value>(
  decoded: Decoded<Value>,
  encode: (out: Output, value: Value) => void,
): Encode | Refusal {
  return decoded.ok ? (out) => encode(out, decoded.value) : decoded.refusal;
}

function readHandles(
  frame: Frame,
  op: typeof Op.abort | typeof Op.release | typeof Op.report,
): Encode | Refusal {
  return either(decodeHandlesRequest(frame, handles), (out) =>
    encodeHandlesRequest(out, op, frame.requestId, handles, !wantsReply(frame)),
  );
}

function readSession(
  frame: Frame,
  op: typeof Op.sessionRelease | typeof Op.sessionStatus,
): Encode | Refusal {
  return either(sessionRequests[op].fill(frame, session), (out) =>
    sessionRequests[op].encode(out, frame.requestId, session, !wantsReply(frame)),
  );
}

function readCopy(frame: Frame, op: CopyOp): Encode | Refusal {
  return either(gpuCopyRequests[op].decode(frame, copying, pieces), (out) =>
    gpuCopyRequests[op].encode(out, frame.requestId, copying, pieces),
  );
}

const READERS: Readonly<Record<OpName, Read>> = {
  hello: (frame) =>
    taken(decodeHelloRequest(frame), (out, hello) =>
      encodeHelloRequest(out, frame.requestId, hello),
    ),
  ping: (frame) =>
    either(checkPing(frame), (out) => {
      const payload = frame.bytes.subarray(frame.body, frame.end);
      encodePingRequest(out, frame.requestId, payload, !wantsReply(frame));
    }),
  identify: (frame) =>
    either(decodeIdentifyRequest(frame, BLOCK_TOKENS, FRAME_BYTES_MAX, identify), (out) =>
      encodeIdentifyRequest(out, frame.requestId, identify),
    ),
  match: (frame) =>
    either(decodeMatchRequest(frame, matching, batch), (out) =>
      encodeMatchRequest(out, frame.requestId, { tiers: matching.tiers }, batch),
    ),
  reserve: (frame) =>
    either(decodeReserveRequest(frame, session, batch), (out) =>
      encodeReserveRequest(
        out,
        frame.requestId,
        { session: session.session, namespace: session.namespace },
        batch,
      ),
    ),
  commit: (frame) =>
    either(commitRequest.decode(frame, handles), (out) =>
      commitRequest.encode(out, frame.requestId, handles, !wantsReply(frame)),
    ),
  abort: (frame) => readHandles(frame, Op.abort),
  acquire: (frame) =>
    either(decodeAcquireRequest(frame, acquire, batch), (out) =>
      encodeAcquireRequest(out, frame.requestId, acquire, batch),
    ),
  release: (frame) => readHandles(frame, Op.release),
  report: (frame) => readHandles(frame, Op.report),
  gpuStored: (frame) =>
    either(decodeGpuStoredRequest(frame, batch), (out) =>
      encodeGpuStoredRequest(out, frame.requestId, batch, !wantsReply(frame)),
    ),
  gpuEvicted: (frame) =>
    either(decodeGpuEvictedRequest(frame, batch), (out) =>
      encodeGpuEvictedRequest(out, frame.requestId, batch, !wantsReply(frame)),
    ),
  sessionCommit: (frame) =>
    either(decodeSessionCommitRequest(frame, session, batch), (out) => {
      const { session: number } = session;
      encodeSessionCommitRequest(
        out,
        frame.requestId,
        { session: number },
        batch,
        !wantsReply(frame),
      );
    }),
  sessionRelease: (frame) => readSession(frame, Op.sessionRelease),
  sessionStatus: (frame) => readSession(frame, Op.sessionStatus),
  sessionList: (frame) =>
    either(decodeSessionListRequest(frame, listing), (out) =>
      encodeSessionListRequest(out, frame.requestId, listing),
    ),
  alias: (frame) =>
    either(decodeAliasRequest(frame, aliasing, aliased), (out) =>
      encodeAliasRequest(out, frame.requestId, aliasing, aliased, !wantsReply(frame)),
    ),
  gpuDevices: (frame) =>
    either(decodeGpuDevicesRequest(frame, devices), (out) =>
      encodeGpuDevicesRequest(out, frame.requestId, devices),
    ),
  gpuRegister: (frame) =>
    taken(decodeGpuRegisterRequest(frame), (out, memories) =>
      encodeGpuRegisterRequest(out, frame.requestId, memories),
    ),
  gpuUnregister: (frame) =>
    either(decodeGpuUnregisterRequest(frame, pieces), (out) =>
      encodeGpuUnregisterRequest(out, frame.requestId, pieces),
    ),
  gpuStore: (frame) => readCopy(frame, Op.gpuStore),
  gpuLoad: (frame) => readCopy(frame, Op.gpuLoad),
  gpuWarm: (frame) =>
    either(decodeGpuWarmRequest(frame, wait, handles), (out) =>
      encodeGpuWarmRequest(out, frame.requestId, wait, handles),
    ),
  join: (frame) =>
    taken(decodeJoinRequest(frame), (out, join) => encodeJoinRequest(out, frame.requestId, join)),
  lookup: (frame) =>
    taken(decodeLookupRequest(frame, BLOCK_TOKENS, ITEMS), (out, lookup) =>
      encodeLookupRequest(out, frame.requestId, lookup),
    ),
  unhold: (frame) =>
    taken(decodeUnholdRequest(frame, ITEMS), (out, holds) =>
      encodeUnholdRequest(out, frame.requestId, holds, !wantsReply(frame)),
    ),
  announce: (frame) =>
    taken(decodeAnnounceRequest(frame, ITEMS), (out, announced) =>
      encodeAnnounceRequest(out, frame.requestId, announced, !wantsReply(frame)),
    ),
  command: (frame) =>
    taken(decodeCommand(frame), (out, json) => encodeCommandRequest(out, frame.requestId, json)),
  namespace: (frame) =>
    taken(decodeNamespaceRequest(frame), (out, wanted) =>
      encodeNamespaceRequest(out, frame.requestId, wanted),
    ),
};

const BY_OP = new Map<number, Read>(
  Object.entries(READERS).map(([name, read]) => [Op[name as OpName], read]),
);

function readRequest(frame: Frame): Encode | Refusal {
  const read = BY_OP.get(frame.op);
  return read?.(frame) ?? refusal(FrameStatus.unknownOp, "no such operation");
}

/** Everything a client may send, frame by frame. */
export function requestFrames(): Target {
  return {
    name: "requests",
    corpus: goldenFrames("request"),
    generate: generateRequests,
    run: (input, saw) => readStream(input, "requests", readRequest, saw),
  };
}
