import { DIGEST_BYTES } from "../../core/index.ts";
import { checkItems, copyIn, copyOut, reservedField } from "./fields.ts";
import type { Frame } from "./frame.ts";
import type { DigestItems, OutcomeItems } from "./items.ts";
import { Op, Outcome } from "./layout.ts";
import { beginReply, beginRequest, type Output } from "./output.ts";
import { malformed, type Refusal } from "./refusal.ts";

/** An engine waits for blocks that somebody wants on its GPU, and says what became of the last. */

export interface WarmWait {
  /** The offer that the outcomes belong to; 0: there was none before. */
  offer: number;
  /** How long to wait for the next one; 0: as long as the agent thinks right. */
  deadlineMs: number;
}

const HEAD_BYTES = 8;
const OUTCOME_BYTES = 8;

export function encodeGpuWarmRequest(
  output: Output,
  requestId: number,
  wait: Readonly<WarmWait>,
  outcomes: Readonly<OutcomeItems>,
): void {
  const { count } = outcomes;
  let at = beginRequest(output, Op.gpuWarm, requestId, count, HEAD_BYTES + count * OUTCOME_BYTES);
  output.view.setUint32(at, wait.offer, true);
  output.view.setUint32(at + 4, wait.deadlineMs, true);
  at += HEAD_BYTES;
  for (let i = 0; i < count; i++, at += OUTCOME_BYTES) {
    output.view.setUint32(at, outcomes.outcome[i]!, true);
    output.view.setUint32(at + 4, 0, true);
  }
}

export function decodeGpuWarmRequest(
  frame: Frame,
  wait: WarmWait,
  into: OutcomeItems,
): Refusal | null {
  const bad = checkItems(frame, HEAD_BYTES, OUTCOME_BYTES, into.outcome.length);
  if (bad !== null) return bad;
  const { view, body } = frame;
  wait.offer = view.getUint32(body, true);
  wait.deadlineMs = view.getUint32(body + 4, true);
  if (wait.offer === 0 && frame.count !== 0) return malformed("gpuWarm: outcomes of no offer");
  for (let i = 0, at = body + HEAD_BYTES; i < frame.count; i++, at += OUTCOME_BYTES) {
    const outcome = view.getUint32(at, true);
    if (outcome > Outcome.device) return malformed(`gpuWarm: outcome ${outcome} is not defined`);
    if (view.getUint32(at + 4, true) !== 0) return reservedField(frame);
    into.outcome[i] = outcome;
  }
  into.count = frame.count;
  return null;
}

/** Offer 0 without blocks: none came within the deadline. */
export function encodeGpuWarmReply(
  output: Output,
  requestId: number,
  offer: number,
  blocks: Readonly<DigestItems>,
): void {
  const digestsBytes = blocks.count * DIGEST_BYTES;
  const at = beginReply(output, Op.gpuWarm, requestId, blocks.count, HEAD_BYTES + digestsBytes);
  output.view.setUint32(at, offer, true);
  output.view.setUint32(at + 4, blocks.layer, true);
  copyIn(blocks.digests, digestsBytes, output.bytes, at + HEAD_BYTES);
}

/** Answers the offer's number, or a refusal. */
export function decodeGpuWarmReply(frame: Frame, into: DigestItems): number | Refusal {
  const bad = checkItems(frame, HEAD_BYTES, DIGEST_BYTES, into.digests.length / DIGEST_BYTES);
  if (bad !== null) return bad;
  const offer = frame.view.getUint32(frame.body, true);
  const layer = frame.view.getUint32(frame.body + 4, true);
  if ((offer === 0) !== (frame.count === 0) || (offer === 0 && layer !== 0)) {
    return malformed("gpuWarm: an offer has a number and blocks, or neither");
  }
  into.layer = layer;
  into.count = frame.count;
  copyOut(frame.bytes, frame.body + HEAD_BYTES, frame.count * DIGEST_BYTES, into.digests);
  return offer;
}
