import {
  checkItems,
  halves,
  isMacZero,
  readMac,
  reservedField,
  undefinedBits,
  writeMac,
} from "./fields.ts";
import type { Frame } from "./frame.ts";
import type { CommitItems, HandleItems, OutcomeItems } from "./items.ts";
import { CommitFlag, MAC_BYTES, Op, Outcome } from "./layout.ts";
import { beginReply, beginRequest, type Output } from "./output.ts";
import { malformed, type Refusal } from "./refusal.ts";

/** Requests that name slots already handed out: commit, abort, release, report. */

const COMMIT_ITEM_BYTES = 24;
const HANDLE_ITEM_BYTES = 8;
const OUTCOME_ITEM_BYTES = 8;

export function encodeCommitRequest(
  output: Output,
  requestId: number,
  handles: Readonly<CommitItems>,
  noReply = false,
  macs: Uint8Array | null = null,
): void {
  const { count } = handles;
  const itemBytes = COMMIT_ITEM_BYTES + (macs === null ? 0 : MAC_BYTES);
  let at = beginRequest(output, Op.commit, requestId, count, count * itemBytes, noReply);
  const { view } = output;
  const checksums = halves(handles.checksum, count);
  for (let i = 0; i < count; i++, at += itemBytes) {
    const given = (handles.flags[i]! & CommitFlag.checksumGiven) !== 0;
    view.setUint32(at, handles.slot[i]!, true);
    view.setUint32(at + 4, handles.generation[i]!, true);
    view.setUint32(at + 8, given ? checksums[2 * i]! : 0, true);
    view.setUint32(at + 12, given ? checksums[2 * i + 1]! : 0, true);
    view.setUint32(at + 16, handles.flags[i]!, true);
    view.setUint32(at + 20, 0, true);
    if (macs !== null) writeMac(output, at + COMMIT_ITEM_BYTES, macs, i, hasMac(handles.flags[i]!));
  }
}

/** `macs`: where the MACs go, 16 bytes an item, on a connection with `Feature.mac`. */
export function decodeCommitRequest(
  frame: Frame,
  into: CommitItems,
  macs: Uint8Array | null = null,
): Refusal | null {
  const itemBytes = COMMIT_ITEM_BYTES + (macs === null ? 0 : MAC_BYTES);
  const known = CommitFlag.checksumGiven | (macs === null ? 0 : CommitFlag.macGiven);
  const bad = checkItems(frame, 0, itemBytes, into.slot.length);
  if (bad !== null) return bad;
  const { view } = frame;
  const checksums = halves(into.checksum, frame.count);
  for (let i = 0, at = frame.body; i < frame.count; i++, at += itemBytes) {
    const low = view.getUint32(at + 8, true);
    const high = view.getUint32(at + 12, true);
    const flags = view.getUint32(at + 16, true);
    if (view.getUint32(at + 20, true) !== 0) return reservedField(frame);
    if ((flags & ~known) !== 0) return undefinedBits(frame, "an item's flags");
    if (macs !== null) {
      readMac(frame, at + COMMIT_ITEM_BYTES, macs, i);
      if (hasMac(flags) === isMacZero(macs, i))
        return malformed("a MAC is not zero with item flag bit 1, and zero without it");
    }
    if ((flags & CommitFlag.checksumGiven) === 0 && (low | high) !== 0)
      return malformed("a checksum without its flag: set item flag bit 0, or send checksum 0");
    into.slot[i] = view.getUint32(at, true);
    into.generation[i] = view.getUint32(at + 4, true);
    checksums[2 * i] = low;
    checksums[2 * i + 1] = high;
    into.flags[i] = flags;
  }
  into.count = frame.count;
  return null;
}

const hasMac = (flags: number) => (flags & CommitFlag.macGiven) !== 0;

type HandleOp = typeof Op.abort | typeof Op.release | typeof Op.report;

/** ABORT, RELEASE and REPORT have one shape. */
export function encodeHandlesRequest(
  output: Output,
  op: HandleOp,
  requestId: number,
  handles: Readonly<HandleItems>,
  noReply = false,
): void {
  const { count } = handles;
  let at = beginRequest(output, op, requestId, count, count * HANDLE_ITEM_BYTES, noReply);
  for (let i = 0; i < count; i++, at += HANDLE_ITEM_BYTES) {
    output.view.setUint32(at, handles.slot[i]!, true);
    output.view.setUint32(at + 4, handles.generation[i]!, true);
  }
}

export function decodeHandlesRequest(frame: Frame, into: HandleItems): Refusal | null {
  const bad = checkItems(frame, 0, HANDLE_ITEM_BYTES, into.slot.length);
  if (bad !== null) return bad;
  for (let i = 0, at = frame.body; i < frame.count; i++, at += HANDLE_ITEM_BYTES) {
    into.slot[i] = frame.view.getUint32(at, true);
    into.generation[i] = frame.view.getUint32(at + 4, true);
  }
  into.count = frame.count;
  return null;
}

/** Operations whose reply is one outcome for each item. */
export type OutcomeOp = Exclude<
  (typeof Op)[keyof typeof Op],
  | typeof Op.hello
  | typeof Op.ping
  | typeof Op.identify
  | typeof Op.match
  | typeof Op.reserve
  | typeof Op.acquire
  | typeof Op.sessionStatus
  | typeof Op.sessionList
  | typeof Op.gpuDevices
  | typeof Op.gpuRegister
  | typeof Op.gpuWarm
  | typeof Op.join
  | typeof Op.lookup
  | typeof Op.command
  | typeof Op.namespace
>;

export function encodeOutcomesReply(
  output: Output,
  op: OutcomeOp,
  requestId: number,
  outcomes: Readonly<OutcomeItems>,
): void {
  const { count } = outcomes;
  let at = beginReply(output, op, requestId, count, count * OUTCOME_ITEM_BYTES);
  for (let i = 0; i < count; i++, at += OUTCOME_ITEM_BYTES) {
    output.view.setUint32(at, outcomes.outcome[i]!, true);
    output.view.setUint32(at + 4, 0, true);
  }
}

export function decodeOutcomesReply(frame: Frame, into: OutcomeItems): Refusal | null {
  const bad = checkItems(frame, 0, OUTCOME_ITEM_BYTES, into.outcome.length);
  if (bad !== null) return bad;
  for (let i = 0, at = frame.body; i < frame.count; i++, at += OUTCOME_ITEM_BYTES) {
    const outcome = frame.view.getUint32(at, true);
    if (outcome > Outcome.device) return malformed(`reply: outcome ${outcome} is not defined`);
    if (frame.view.getUint32(at + 4, true) !== 0) return reservedField(frame);
    into.outcome[i] = outcome;
  }
  into.count = frame.count;
  return null;
}
