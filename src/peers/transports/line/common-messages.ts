import { LINK_FAULTS, type LinkFaultKind } from "../../transport.ts";
import { type Field, frame, textOf, words } from "./framing.ts";

/**
 * What the ends of a link say to each other whatever carries its payload. `body` is of the common
 * wire codec and stands last.
 */
export type CommonMessage =
  | { readonly kind: "call"; readonly id: number; readonly body: Uint8Array }
  | { readonly kind: "answer"; readonly id: number; readonly body: Uint8Array }
  /** A block whose header was sent does not come after all. */
  | { readonly kind: "lost"; readonly id: number; readonly index: number }
  /** A pull is not begun: there is too much to do. */
  | { readonly kind: "busy"; readonly id: number; readonly retryAfterMs: number }
  /** What is not answered yet of a pull never will be. */
  | {
      readonly kind: "end";
      readonly id: number;
      readonly fault: LinkFaultKind;
      readonly why: string;
    }
  | { readonly kind: "cancel"; readonly id: number }
  | { readonly kind: "ping"; readonly nonce: number }
  | { readonly kind: "pong"; readonly nonce: number }
  /** The last message: why this side ends the link. */
  | { readonly kind: "bye"; readonly fault: LinkFaultKind; readonly why: string };

type CommonKind = CommonMessage["kind"];

/** The byte for each kind, the same for all transports. */
const COMMON_CODES: Readonly<Record<CommonKind, number>> = {
  call: 3,
  answer: 4,
  lost: 8,
  busy: 9,
  end: 10,
  cancel: 11,
  ping: 12,
  pong: 13,
  bye: 14,
};
const KINDS = new Map(Object.entries(COMMON_CODES).map(([kind, code]) => [code, kind]));

/** Bytes of a kind's fixed fields, and whether more may follow. */
const FIXED: Readonly<Record<CommonKind, readonly [bytes: number, more: boolean]>> = {
  call: [4, true],
  answer: [4, true],
  lost: [6, false],
  busy: [8, false],
  end: [5, true],
  cancel: [4, false],
  ping: [4, false],
  pong: [4, false],
  bye: [1, true],
};

export function isCommon(message: { readonly kind: string }): message is CommonMessage {
  return message.kind in COMMON_CODES;
}

/** The whole message, its length in front. */
export function encodeCommon(said: CommonMessage): Uint8Array {
  return frame(COMMON_CODES[said.kind], ...fieldsOf(said));
}

function fieldsOf(said: CommonMessage): Field[] {
  switch (said.kind) {
    case "call":
    case "answer":
      return [[4, said.id], said.body];
    case "lost":
      return [
        [4, said.id],
        [2, said.index],
      ];
    case "busy":
      return [
        [4, said.id],
        [4, said.retryAfterMs],
      ];
    case "end":
      return [[4, said.id], [1, LINK_FAULTS.indexOf(said.fault)], words(said.why)];
    case "cancel":
      return [[4, said.id]];
    case "ping":
    case "pong":
      return [[4, said.nonce]];
    case "bye":
      return [[1, LINK_FAULTS.indexOf(said.fault)], words(said.why)];
    default:
      throw said satisfies never;
  }
}

/** Null: it makes no sense. Undefined: it is none of these. Views, not copies. */
export function decodeCommon(bytes: Uint8Array): CommonMessage | null | undefined {
  const kind = KINDS.get(bytes[0] ?? 0) as CommonKind | undefined;
  if (kind === undefined) return undefined;
  const fields = bytes.subarray(1);
  const [fixed, more] = FIXED[kind];
  if (fields.length < fixed || (!more && fields.length > fixed)) return null;
  const rest = fields.subarray(fixed);
  const view = new DataView(fields.buffer, fields.byteOffset, fields.length);
  const u32 = (at: number) => view.getUint32(at, true);
  switch (kind) {
    case "call":
    case "answer":
      return { kind, id: u32(0), body: rest };
    case "lost":
      return { kind, id: u32(0), index: view.getUint16(4, true) };
    case "busy":
      return { kind, id: u32(0), retryAfterMs: u32(4) };
    case "end": {
      const [fault, why] = [LINK_FAULTS[fields[4]!], textOf(rest)];
      return fault === undefined || why === null ? null : { kind, id: u32(0), fault, why };
    }
    case "cancel":
      return { kind, id: u32(0) };
    case "ping":
    case "pong":
      return { kind, nonce: u32(0) };
    case "bye": {
      const [fault, why] = [LINK_FAULTS[fields[0]!], textOf(rest)];
      return fault === undefined || why === null ? null : { kind, fault, why };
    }
    default:
      throw kind satisfies never;
  }
}
