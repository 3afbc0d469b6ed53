import { CIPHERS, type Cipher, type LaneSession } from "../../../../native/index.ts";
import { LINK_FAULTS, type LinkFaultKind } from "../../../transport.ts";

/**
 * What the two ends of a stream link say to each other inside TLS. On the wire each message is
 * `length u32, kind u8, fields`; the length counts what follows it, all numbers are little-endian.
 * `body` is of the common wire codec and stands last.
 */
export type ControlMessage =
  /** Asker, first: the ciphers it accepts, best first, and the lanes it would like. */
  | {
      readonly kind: "hello";
      readonly version: number;
      readonly lanes: number;
      readonly ciphers: readonly Cipher[];
    }
  /** Server's answer: the lanes' session and where they are expected. */
  | {
      readonly kind: "welcome";
      readonly version: number;
      readonly port: number;
      /** Requests that may be under way. */
      readonly requests: number;
      readonly session: LaneSession;
    }
  | { readonly kind: "call"; readonly id: number; readonly body: Uint8Array }
  | { readonly kind: "answer"; readonly id: number; readonly body: Uint8Array }
  /** The first `announced` items are awaited as transfers `transfer`, `transfer + 1`, and so on. */
  | {
      readonly kind: "pull";
      readonly id: number;
      readonly transfer: number;
      readonly announced: number;
      readonly body: Uint8Array;
    }
  /** One item's answer. `sent`: the block's bytes are on their way; else they wait for `go`. */
  | {
      readonly kind: "part";
      readonly id: number;
      readonly sent: boolean;
      readonly body: Uint8Array;
    }
  | {
      readonly kind: "go";
      readonly id: number;
      readonly index: number;
      readonly transfer: number;
    }
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

export type ControlKind = ControlMessage["kind"];

/** The byte for each kind; numbers are never used again for something else. */
const CODES: Readonly<Record<ControlKind, number>> = {
  hello: 1,
  welcome: 2,
  call: 3,
  answer: 4,
  pull: 5,
  part: 6,
  go: 7,
  lost: 8,
  busy: 9,
  end: 10,
  cancel: 11,
  ping: 12,
  pong: 13,
  bye: 14,
};
const KINDS = new Map(Object.entries(CODES).map(([kind, code]) => [code, kind as ControlKind]));

export const CONTROL_VERSION = 1;
/** Length and kind. */
export const PREFIX_BYTES = 5;
const SESSION_ID_BYTES = 16;
const SECRET_BYTES = 32;
const WHY_BYTES_MAX = 255;
const NOTHING = new Uint8Array(0);

/** Numbers and bytes, one after the other. */
type Field = readonly [width: 1 | 2 | 4, value: number] | Uint8Array;

function message(kind: ControlKind, ...fields: readonly Field[]): Uint8Array {
  let length = PREFIX_BYTES;
  for (const field of fields) length += field instanceof Uint8Array ? field.length : field[0];
  const bytes = new Uint8Array(length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, length - 4, true);
  bytes[4] = CODES[kind];
  let at = PREFIX_BYTES;
  for (const field of fields) {
    if (field instanceof Uint8Array) {
      bytes.set(field, at);
      at += field.length;
      continue;
    }
    const [width, value] = field;
    if (width === 1) bytes[at] = value;
    else if (width === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += width;
  }
  return bytes;
}

/** Words for the other side, cut to what the message holds. */
function words(text: string): Uint8Array {
  const bytes = new Uint8Array(WHY_BYTES_MAX);
  return bytes.subarray(0, new TextEncoder().encodeInto(text, bytes).written);
}

/** The whole message, its length in front. */
export function encodeControl(said: ControlMessage): Uint8Array {
  const { kind } = said;
  switch (kind) {
    case "hello": {
      const ciphers = said.ciphers.map((cipher) => CIPHERS.indexOf(cipher));
      return message(kind, [2, said.version], [1, said.lanes], Uint8Array.from(ciphers));
    }
    case "welcome": {
      const { session } = said;
      const how: Field[] = [
        [1, CIPHERS.indexOf(session.cipher)],
        [1, session.lanes],
      ];
      const where: Field[] = [
        [2, said.version],
        [2, said.port],
        [2, said.requests],
      ];
      return message(kind, ...where, ...how, session.id, session.secret);
    }
    case "call":
    case "answer":
      return message(kind, [4, said.id], said.body);
    case "pull":
      return message(kind, [4, said.id], [4, said.transfer], [2, said.announced], said.body);
    case "part":
      return message(kind, [4, said.id], [1, said.sent ? 1 : 0], said.body);
    case "lost":
      return message(kind, [4, said.id], [2, said.index]);
    case "go":
      return message(kind, [4, said.id], [2, said.index], [4, said.transfer]);
    case "end":
      return message(kind, [4, said.id], [1, LINK_FAULTS.indexOf(said.fault)], words(said.why));
    case "busy":
      return message(kind, [4, said.id], [4, said.retryAfterMs]);
    case "cancel":
      return message(kind, [4, said.id]);
    case "ping":
    case "pong":
      return message(kind, [4, said.nonce]);
    case "bye":
      return message(kind, [1, LINK_FAULTS.indexOf(said.fault)], words(said.why));
    default:
      throw said satisfies never;
  }
}

/** Bytes of a kind's fixed fields, and whether more may follow. */
const FIXED: Readonly<Record<ControlKind, readonly [bytes: number, more: boolean]>> = {
  hello: [3, true],
  welcome: [8 + SESSION_ID_BYTES + SECRET_BYTES, false],
  call: [4, true],
  answer: [4, true],
  pull: [10, true],
  part: [5, true],
  go: [10, false],
  lost: [6, false],
  busy: [8, false],
  end: [5, true],
  cancel: [4, false],
  ping: [4, false],
  pong: [4, false],
  bye: [1, true],
};

/** `bytes`: what follows a message's length. Null: it makes no sense. Views, not copies. */
export function decodeControl(bytes: Uint8Array): ControlMessage | null {
  const kind = KINDS.get(bytes[0] ?? 0);
  if (kind === undefined) return null;
  const fields = bytes.subarray(1);
  const [fixed, more] = FIXED[kind];
  if (fields.length < fixed || (!more && fields.length > fixed)) return null;
  const rest = more ? fields.subarray(fixed) : NOTHING;
  const view = new DataView(fields.buffer, fields.byteOffset, fields.length);
  const u16 = (at: number) => view.getUint16(at, true);
  const u32 = (at: number) => view.getUint32(at, true);
  switch (kind) {
    case "hello":
      return helloOf(u16(0), fields[2]!, rest);
    case "welcome":
      return welcomeOf(u16(0), u16(2), u16(4), fields);
    case "call":
    case "answer":
      return { kind, id: u32(0), body: rest };
    case "pull":
      return { kind, id: u32(0), transfer: u32(4), announced: u16(8), body: rest };
    case "part":
      return fields[4]! > 1 ? null : { kind, id: u32(0), sent: fields[4] === 1, body: rest };
    case "lost":
      return { kind, id: u32(0), index: u16(4) };
    case "go":
      return { kind, id: u32(0), index: u16(4), transfer: u32(6) };
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

function helloOf(version: number, lanes: number, rest: Uint8Array): ControlMessage | null {
  if (version === 0 || lanes === 0 || rest.length === 0) return null;
  // Ciphers of later versions are none of ours, and no fault.
  if (rest.length > 16) return null;
  const known = [...new Set(rest)].map((code) => CIPHERS[code]);
  return {
    kind: "hello",
    version,
    lanes,
    ciphers: known.filter((cipher) => cipher !== undefined),
  };
}

function welcomeOf(
  version: number,
  port: number,
  requests: number,
  fields: Uint8Array,
): ControlMessage | null {
  const cipher = CIPHERS[fields[6]!];
  const lanes = fields[7]!;
  if (version === 0 || port === 0 || requests === 0) return null;
  if (cipher === undefined || lanes === 0) return null;
  const id = fields.slice(8, 8 + SESSION_ID_BYTES);
  const secret = fields.slice(8 + SESSION_ID_BYTES);
  return { kind: "welcome", version, port, requests, session: { id, secret, cipher, lanes } };
}

function textOf(bytes: Uint8Array): string | null {
  if (bytes.length > WHY_BYTES_MAX) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}
