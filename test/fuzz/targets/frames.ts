import {
  type AcquireOptions,
  AliasKind,
  checkPing,
  consumeOutput,
  createFrameReader,
  createOutput,
  decodeAcquireReply,
  decodeAcquireRequest,
  decodeAliasRequest,
  decodeCommitRequest,
  decodeErrorReply,
  decodeGpuEvictedRequest,
  decodeGpuStoredRequest,
  decodeHandlesRequest,
  decodeHelloReply,
  decodeHelloRequest,
  decodeIdentifyReply,
  decodeIdentifyRequest,
  decodeMatchReply,
  decodeMatchRequest,
  decodeOutcomesReply,
  decodeReserveReply,
  decodeReserveRequest,
  decodeSessionCommitRequest,
  decodeSessionRequest,
  decodeSessionStatusReply,
  emptyIdentifyRequest,
  encodeAcquireRequest,
  encodeCommitRequest,
  encodeHandlesRequest,
  encodeMatchRequest,
  encodeReserveRequest,
  type Frame,
  Op,
  type Output,
  pendingBytes,
  pendingOutput,
  wantsReply,
} from "../../../src/engine/protocol/index.ts";
import { createAddressBatch, createHandleBatch } from "../../../src/tiers/index.ts";
import { goldenFrames } from "../corpus.ts";
import { must, type Target } from "../target.ts";

const ITEMS = 256;
const FRAME_BYTES = 64 * 1024;

const batch = createAddressBatch(ITEMS);
const handles = createHandleBatch(ITEMS);
const best = new Uint8Array(ITEMS);
const aliases = new Uint8Array(ITEMS * 32);
const session = { session: 0n };
const matching = { tiers: 0 };
const acquire: AcquireOptions = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
const aliasing = { kind: AliasKind.engineHash as AliasKind };
const identify = emptyIdentifyRequest();
const output = createOutput();

/** What was accepted has one encoding: the bytes that came. */
function sameBytes(frame: Frame, encode: (output: Output) => void): void {
  encode(output);
  const again = pendingOutput(output);
  const came = frame.bytes.subarray(frame.end - frame.length, frame.end);
  must(Buffer.compare(again, came) === 0, `frame of op ${frame.op} encodes to what it was`);
  consumeOutput(output, pendingBytes(output));
}

function decodeRequest(frame: Frame): void {
  const { op, requestId } = frame;
  const silent = !wantsReply(frame);
  if (op === Op.hello) decodeHelloRequest(frame);
  if (op === Op.ping) checkPing(frame);
  if (op === Op.identify) decodeIdentifyRequest(frame, 16, FRAME_BYTES, identify);
  if (op === Op.match && decodeMatchRequest(frame, matching, batch) === null)
    sameBytes(frame, (out) => encodeMatchRequest(out, requestId, matching.tiers, batch));
  if (op === Op.reserve && decodeReserveRequest(frame, session, batch) === null)
    sameBytes(frame, (out) => encodeReserveRequest(out, requestId, session.session, batch));
  if (op === Op.commit && decodeCommitRequest(frame, handles) === null)
    sameBytes(frame, (out) => encodeCommitRequest(out, requestId, handles, silent));
  if ((op === Op.abort || op === Op.release) && decodeHandlesRequest(frame, handles) === null)
    sameBytes(frame, (out) => encodeHandlesRequest(out, op, requestId, handles, silent));
  if (op === Op.acquire && decodeAcquireRequest(frame, acquire, batch) === null)
    sameBytes(frame, (out) => encodeAcquireRequest(out, requestId, acquire, batch));
  if (op === Op.gpuStored) decodeGpuStoredRequest(frame, batch);
  if (op === Op.gpuEvicted) decodeGpuEvictedRequest(frame, batch);
  if (op === Op.sessionCommit) decodeSessionCommitRequest(frame, session, batch);
  if (op === Op.sessionRelease || op === Op.sessionStatus) decodeSessionRequest(frame, session);
  if (op === Op.alias) decodeAliasRequest(frame, aliasing, batch, aliases);
}

/**
 * A client knows from its request what an answer is; here every decoder has to bear every answer.
 */
function decodeReply(frame: Frame): void {
  decodeErrorReply(frame);
  decodeHelloReply(frame);
  decodeIdentifyReply(frame, batch);
  decodeMatchReply(frame, best);
  decodeReserveReply(frame, handles);
  decodeAcquireReply(frame, handles);
  decodeOutcomesReply(frame, handles);
  decodeSessionStatusReply(frame);
}

/** The bytes in two pieces, cut where the first byte says: frames split anywhere. */
function read(input: Uint8Array, direction: "requests" | "replies", decode: (f: Frame) => void) {
  const reader = createFrameReader({ direction, frameBytesMax: FRAME_BYTES });
  const cut = Math.min(input.length, input[0] ?? 0);
  for (const piece of [input.subarray(0, cut), input.subarray(cut)]) {
    const fault = reader.push(piece, (frame) => {
      decode(frame);
      return true;
    });
    must(reader.heldBytes <= 2 * FRAME_BYTES, "a reader keeps no more than two frames");
    if (fault !== null) return;
  }
}

export function requestFrames(): Target {
  const corpus = goldenFrames("request");
  return { name: "requests", corpus, run: (input) => read(input, "requests", decodeRequest) };
}

export function replyFrames(): Target {
  const corpus = goldenFrames("reply");
  return { name: "replies", corpus, run: (input) => read(input, "replies", decodeReply) };
}
